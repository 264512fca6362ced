"""FilterSpec: numbers of every kind mean what they say, here and in other processes."""

import os
import pickle
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from helpers import filtered

from specgrad_kernels import FilterSpec
from specgrad_kernels.spec import cached_spec


@pytest.mark.parametrize(
    "ratio",
    [0.29, "0.29", np.float64(0.29), np.float32(0.29), Decimal("0.29"), Fraction(29, 100)],
    ids=repr,
)
def test_every_way_to_write_a_ratio(ratio):
    assert FilterSpec(ratio=ratio) == FilterSpec(ratio="29/100")
    assert FilterSpec(ratio=[ratio, 0]) == FilterSpec(ratio=["29/100", np.int64(0)])


def test_every_way_to_write_a_width():
    assert FilterSpec("lap", window=np.int64(25)) == FilterSpec("lap", window=25)
    for sigma in (np.float32(2.5), Decimal("2.5"), Fraction(5, 2)):
        assert FilterSpec("gaussian", sigma=sigma) == FilterSpec("gaussian", sigma=2.5)
    whole = FilterSpec("random", batch_dims=np.int32(1), seed=np.uint8(7))
    assert (whole.batch_dims, whole.seed) == (1, 7)
    assert whole == FilterSpec("random", batch_dims=1, seed=7)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"ratio": np.float64("nan")}, "ratio must be a number"),
        ({"ratio": torch.tensor(0.25)}, "ratio must be a number"),
        ({"ratio": Decimal("1")}, r"ratio must lie in \[0, 1\)"),
        ({"method": "lap", "window": np.int64(24)}, "window must be a positive odd integer"),
        (
            {"method": "lap", "window": "25"},
            "window must be a positive odd integer below 1,000,000; got '25'",
        ),
        ({"method": "lap", "window": float("inf")}, "window must be a positive odd integer"),
        ({"method": "lap", "window": 1_000_001}, "below 1,000,000; got 1000001"),
        ({"method": "gaussian", "sigma": 1e19}, r"at most 1,000,000; got 1e\+19"),
        (
            {"method": "gaussian", "sigma": "2"},
            "sigma must be positive and at most 1,000,000; got '2'",
        ),
    ],
)
def test_what_is_no_number_is_refused(options, match):
    with pytest.raises(ValueError, match=match):
        FilterSpec(**options)


@pytest.mark.parametrize("first", ["plain", "numpy"])
def test_the_answer_does_not_depend_on_earlier_calls(first):
    """Equal numbers of different kinds share one entry of the cache of specs."""
    cached_spec.cache_clear()
    options = {
        "plain": {"method": "lap", "ratio": 0.25, "window": 25},
        "numpy": {"method": "lap", "ratio": np.float64(0.25), "window": 25.0},
    }
    grad = torch.randn(500)
    other = "numpy" if first == "plain" else "plain"
    assert torch.equal(filtered(grad, **options[first]), filtered(grad, **options[other]))


def test_equal_specs_have_equal_hashes_in_another_process():
    spec = FilterSpec("lap", ratio=[0.1, "1/3"], order="10")
    hash(spec)
    code = """
import pickle, sys
from specgrad_kernels import FilterSpec
sent, own = pickle.loads(sys.stdin.buffer.read()), FilterSpec("lap", [0.1, "1/3"], order="10")
assert sent == own
assert hash(sent) == hash(own) and own in {sent: 1}, "the hash came along"
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(spec),
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()


def test_a_width_filters_where_the_cutoff_is_zero():
    grad = torch.randn(500)
    assert torch.equal(filtered(grad, method="lap", ratio=0.0), grad)
    for width in ({"method": "lap", "window": 5}, {"method": "gaussian", "sigma": 1.5}):
        assert not torch.allclose(filtered(grad, ratio=0.0, **width), grad)
