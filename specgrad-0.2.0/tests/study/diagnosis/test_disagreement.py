"""Disagreement, bands and theory against the defining formulas in float64, and closed forms."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specgrad_study import diagnosis
from specgrad_study.diagnosis import Disagreement, Snapshot, measure

from specgrad_kernels import FilterPlan, FilterSpec, filter_grads_, reference

SHAPES = {"conv": (8, 4, 3, 3), "odd": (7, 13, 3, 3), "fc": (10, 31), "bias": (10,), "one": (1,)}
FILTERED = ["conv", "odd"]


def federation(seed, clients=5, dtype=torch.float64, shapes=SHAPES, shared=1.0):
    """Weights and gradients of clients around a common mean of size ``shared``."""
    draw = torch.Generator().manual_seed(seed)
    mean = {
        n: shared * torch.randn(s, generator=draw, dtype=torch.float64) for n, s in shapes.items()
    }
    for _ in range(clients):
        weight = float(torch.rand((), generator=draw)) + 0.1
        noise = {n: torch.randn(s, generator=draw, dtype=torch.float64) for n, s in shapes.items()}
        smooth = {n: noise[n].flatten().cumsum(0).view(s) for n, s in shapes.items()}
        yield weight, {n: (mean[n] + noise[n] + 0.3 * smooth[n]).to(dtype) for n in shapes}


def around_mean(clients):
    """Shares ``p_k``, mean, and ``e_k``, all in float64."""
    whole = sum(weight for weight, _ in clients)
    shares = [weight / whole for weight, _ in clients]
    names = clients[0][1]
    mean = {
        n: sum(p * g[n].double() for p, (_, g) in zip(shares, clients, strict=True)) for n in names
    }
    return shares, mean, [{n: g[n].double() - mean[n] for n in names} for _, g in clients]


def spectrum_of(tensor):
    """Energy of each bin, by the definition."""
    flat = tensor.flatten()
    power = torch.fft.rfft(flat, norm="ortho").abs().square()
    return power * diagnosis.parseval_weights(flat.numel())


def brute_energies(clients, name):
    shares, _, errors = around_mean(clients)
    return sum(p * spectrum_of(e[name]) for p, e in zip(shares, errors, strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_energies_are_those_of_the_definition(seed):
    clients = list(federation(seed))
    found = measure(clients, FILTERED, FilterSpec(ratio=0.1), measured=[*FILTERED, "fc"])
    shares, mean, errors = around_mean(clients)
    for name, layer in found.layers.items():
        d = math.prod(SHAPES[name])
        total = sum(p * e[name].square().sum() for p, e in zip(shares, errors, strict=True))
        assert layer.total == pytest.approx(float(total), rel=1e-12)
        assert layer.total_signal == pytest.approx(float(mean[name].square().sum()), rel=1e-12)
        if name not in (*FILTERED, "fc"):
            assert not layer.edges
            continue
        bins = brute_energies(clients, name)
        cutoff = reference.cutoff(0.1, d) if name in FILTERED else 0
        assert layer.cutoff == cutoff
        assert layer.low() == pytest.approx(float(bins[:cutoff].sum()), rel=1e-12)
        if cutoff:
            assert layer.high() == pytest.approx(float(bins[cutoff:].sum()), rel=1e-12)
            assert layer.kappa() == pytest.approx(
                float(bins[:cutoff].sum() / bins.sum()), rel=1e-12
            )
        band = torch.tensor([10 * q // len(bins) for q in range(len(bins))])
        expected = torch.zeros(10, dtype=torch.float64).index_add(0, band, bins)
        torch.testing.assert_close(layer.bands(), expected, rtol=1e-12, atol=0)
        steps = [e[name].flatten() - e[name].flatten().roll(1) for e in errors]
        rough = sum(p * s.square().sum() for p, s in zip(shares, steps, strict=True))
        assert layer.tau == pytest.approx(float(rough / total), rel=1e-12)


def test_rho_and_delta_are_those_of_the_filtered_gradients():
    clients = list(federation(7))
    found = measure(clients, FILTERED, FilterSpec(ratio=0.2))
    shares, mean, errors = around_mean(clients)

    def kept(tensors):
        copies = {n: t.clone() for n, t in tensors.items()}
        filter_grads_([copies[n] for n in FILTERED], ratio=0.2)
        return float(sum(t.square().sum() for t in copies.values()))

    whole = sum(t.square().sum() for t in mean.values())
    assert found.rho == pytest.approx(1 - kept(mean) / float(whole), rel=1e-10)
    delta = sum(p * kept(e) for p, e in zip(shares, errors, strict=True))
    assert found.delta_high == pytest.approx(delta, rel=1e-10)


@given(st.integers(0, 10**6), st.sampled_from([20, 21, 64, 999, 5000]), st.floats(0, 1e6))
@settings(max_examples=60)
def test_parseval_holds_even_where_the_mean_dominates(seed, d, shared):
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        clients = federation(seed, 10, dtype, {"w": (d,)}, shared)
        layer = measure(clients, ["w"]).layers["w"]
        assert layer.parseval_error < bound
        assert float(layer.bands().sum()) == pytest.approx(layer.total, rel=bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_large_mean_does_not_hide_the_disagreement(dtype):
    """Gradients that are exact in float32, so that the truth is known to the last bit."""
    d, clients = 1024, 8
    wave = torch.tensor([1.0, -1.0]).repeat(d // 2)
    given_ = [(1.0, {"w": (2.0**20 + k * wave).to(dtype)}) for k in range(clients)]
    layer = measure(given_, ["w"]).layers["w"]
    variance = sum((k - 3.5) ** 2 for k in range(clients)) / clients
    assert layer.total == pytest.approx(d * variance, rel=1e-9)
    assert float(layer.bands()[9]) == pytest.approx(d * variance, rel=1e-6)


@pytest.mark.parametrize(("wave", "band"), [(0, 0), (1, 0), (60, 1), (449, 8), (512, 9)])
def test_a_wave_lies_in_its_band(wave, band):
    """Clients that differ by one cosine disagree in its bin alone, with known energy."""
    d = 1024
    shape = torch.cos(2 * math.pi * wave * torch.arange(d, dtype=torch.float64) / d)
    layer = measure([(1, {"w": 1 + a * shape}) for a in (-1.0, 1.0)], ["w"]).layers["w"]
    expected = d if wave in (0, 512) else d / 2
    bands = torch.zeros(10, dtype=torch.float64)
    bands[band] = expected
    torch.testing.assert_close(layer.bands(), bands, rtol=1e-12, atol=1e-9)


@given(
    st.integers(0, 10**6),
    st.integers(1, 400),
    st.integers(2, 6),
    st.integers(0, 99),
    st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=80)
def test_invariants(seed, d, clients, percent, dtype):
    shapes = {"w": (d,), "v": (50,), "b": (3,)}
    spec = FilterSpec(ratio=percent / 100)
    snapshots = [
        measure(federation(seed + i, clients, dtype, shapes), ["w", "v"], spec) for i in (0, 1)
    ]
    rounding = 1e-6 if dtype == torch.float32 else 1e-12
    for snapshot in snapshots:
        assert 0 <= snapshot.rho <= 1
        for layer in snapshot.layers.values():
            if not layer.edges:
                continue
            kappa = layer.kappa()
            assert 0 <= kappa <= 1
            assert 0 <= layer.tau <= 4 * (1 + rounding)
            if layer.filtered:
                bound = layer.tau / layer.lambda_
                assert layer.high() <= (bound * (1 + rounding) + rounding) * layer.total
                assert kappa >= 1 - bound * (1 + rounding) - rounding
    budget = diagnosis.budget(snapshots)
    assert budget.measured <= budget.certified * (1 + 1e-12)
    assert budget.rho == max(s.rho for s in snapshots)


def test_the_order_of_clients_and_the_scale_of_weights_do_not_matter():
    clients = list(federation(3))
    one = measure(clients, FILTERED)
    two = measure([(100 * w, g) for w, g in reversed(clients)], FILTERED)
    for name in one.layers:
        assert one.layers[name].total == pytest.approx(two.layers[name].total, rel=1e-12)
    assert one.delta_high == pytest.approx(two.delta_high, rel=1e-12)


def test_clients_that_agree():
    same = {"w": torch.arange(100.0)}
    found = measure([(1, same), (2, same)], ["w"])
    assert found.layers["w"].kappa() is None
    assert found.layers["w"].tau is None
    assert found.kappa is None
    assert diagnosis.band_shares([found]).sum() == 0
    assert diagnosis.budget([found]).certified == 0


def test_a_zero_mean_has_no_rho():
    wave = torch.ones(100)
    assert measure([(1, {"w": wave}), (1, {"w": -wave})], ["w"]).rho is None


def test_means_over_layers_and_snapshots():
    snapshots = [measure(federation(i), FILTERED, measured=[*FILTERED, "fc"]) for i in range(3)]
    layers = [s.layers[n].bands() for s in snapshots for n in (*FILTERED, "fc")]
    expected = torch.stack(layers).mean(0)
    torch.testing.assert_close(diagnosis.mean_bands(snapshots), expected)
    torch.testing.assert_close(diagnosis.band_shares(snapshots), expected / expected.sum())
    only = torch.stack([s.layers["fc"].bands() for s in snapshots]).mean(0)
    torch.testing.assert_close(diagnosis.mean_bands(snapshots, ["fc"]), only)


def test_short_tensors_are_left_out_of_the_bands():
    found = measure(federation(0), ["conv", "one"], measured=["one", "conv"])
    torch.testing.assert_close(found.bands(), found.layers["conv"].bands())
    with pytest.raises(ValueError, match="too few for 10 bands"):
        found.layers["one"].bands()


@pytest.mark.parametrize("order", ["0231", "3210", "random:5"])
def test_spectra_follow_the_flattening_order(order):
    """Energy below the cutoff is what the filter in that order removes."""
    clients = list(federation(5))
    found = measure(clients, FILTERED, FilterSpec(ratio=0.1, order=order))
    for _, gradients in clients:
        kept = [gradients[name] for name in FILTERED]
        filter_grads_(kept, ratio=0.1, order=order, backend="torch")
    shares, _, errors = around_mean(clients)
    for name in FILTERED:
        left = sum(p * e[name].square().sum() for p, e in zip(shares, errors, strict=True))
        assert found.layers[name].high() == pytest.approx(float(left), rel=1e-10)


def test_snapshots_survive_json():
    found = measure(federation(1), FILTERED)
    again = Snapshot.parse(json.loads(json.dumps(found.as_dict())))
    assert again.rho == found.rho
    assert again.delta_high == found.delta_high
    assert again.selected == found.selected
    torch.testing.assert_close(again.bands(), found.bands(), rtol=0, atol=0)


def test_half_precision_and_channels_last_gradients():
    draw = torch.Generator().manual_seed(0)
    exact = [torch.randn(8, 4, 3, 3, generator=draw).bfloat16() for _ in range(3)]
    plain = measure([(1, {"w": g.float()}) for g in exact], ["w"])
    other = measure([(1, {"w": g.to(memory_format=torch.channels_last)}) for g in exact], ["w"])
    assert other.layers["w"].low() == plain.layers["w"].low()


GRADIENT = {"w": torch.ones(40)}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: m.add(0, GRADIENT), "weight is 0"),
        (lambda m: m.add(math.inf, GRADIENT), "weight is inf"),
        (lambda m: m.add(1, {"w": torch.ones(40, dtype=torch.int32)}), "w cannot be measured"),
        (lambda m: Disagreement(["w"], FilterSpec(order="10")).add(1, GRADIENT), "names 2 axes"),
        (lambda m: Disagreement(["w"], FilterSpec(order=(1, 0))).add(1, GRADIENT), "permutes 2"),
        (lambda m: Disagreement(["w"], FilterSpec("fft2d")).add(1, GRADIENT), "two kernel"),
        (lambda m: m.add(1, {"v": torch.ones(40)}), "no gradient is named 'w'"),
        (lambda m: (m.add(1, GRADIENT), m.add(1, {})), "only some have 'w'"),
        (lambda m: (m.add(1, GRADIENT), m.add(1, {"w": torch.ones(4)})), "has shape"),
        (lambda m: m.add(1, {"w": torch.full((40,), math.nan)}), "NaN or Inf"),
        (lambda m: m.result(), "no client was added"),
        (lambda m: Disagreement(["w"], FilterSpec(batch_dims=1)), "batch_dims is 1"),
        (lambda m: Disagreement(["w"], FilterSpec(ratio=(0.1, 0.2))), "2 entries for 1 tensors"),
        (lambda m: diagnosis.mean_bands([]), "snapshots is empty"),
        (lambda m: diagnosis.budget([]), "snapshots is empty"),
        (
            lambda m: (m.add(1, GRADIENT), m.result().layers["w"].low(cutoff=16)),
            "multiple of 0.005",
        ),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make(Disagreement(["w"]))


def test_a_refused_client_leaves_no_trace():
    clients = list(federation(2))
    meter = Disagreement(FILTERED)
    with pytest.raises(ValueError, match="NaN or Inf"):
        meter.add(1.0, {name: torch.full((50,), math.nan) for name in FILTERED})
    for weight, gradients in clients:
        meter.add(weight, gradients)
        broken = {**gradients, "odd": torch.full_like(gradients["odd"], math.inf)}
        with pytest.raises(ValueError, match="odd holds NaN or Inf"):
            meter.add(1.0, broken)
    assert meter.result().delta_high == measure(clients, FILTERED).delta_high


MEMORY = """
import torch
from specgrad_fl.client import peak_mib
from specgrad_kernels import FilterSpec, select_layers
from specgrad_study.diagnosis import Disagreement

torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Conv2d(192, 192, 3, bias=False) for _ in range(12)))
for p in model.parameters():
    p.grad = torch.randn_like(p)
taken = list(select_layers(model).taken)
torch.fft.rfft(torch.randn(1000))
small = {"w": torch.randn(8, 8, 3, 3)}
warm = Disagreement(["w"])
warm.add(1, small), warm.add(1, small)
meter = Disagreement(taken)
peaks = [peak_mib()]
for client in range(4):
    for p in model.parameters():
        p.grad.mul_(1.1)
    meter.add(1.0, {n: p.grad for n, p in model.named_parameters()})
    peaks.append(peak_mib())
meter.result()
peaks.append(peak_mib())
models = [2**20 * (peak - peaks[0]) / sum(4 * p.numel() for p in model.parameters())
          for peak in peaks]
print(models[2], models[-1])
"""


def test_memory_does_not_grow_with_the_clients():
    """Measured by the operating system, for 16 MiB whose largest layer is a twelfth of it.

    A client that were kept would add a whole model. What the first two take differs between
    machines, by the buffers of their libraries for instance. The allocator is told to give
    freed memory back, so that what is measured is in use.
    """
    done = subprocess.run(
        [sys.executable, "-c", MEMORY],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
        capture_output=True,
        text=True,
        check=True,
    )
    two, four = map(float, done.stdout.split())
    assert two > 0.9
    assert four - two < 1


def test_a_plan_can_be_built_from_a_diagnosis():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3), torch.nn.Flatten(),
        torch.nn.Linear(16 * 16, 4),
    )  # fmt: skip
    names = list(FilterPlan.for_model(model).names)
    meter = Disagreement(names)
    draw = torch.Generator().manual_seed(0)
    for _ in range(6):
        model.zero_grad()
        x = torch.randn(8, 3, 8, 8, generator=draw)
        model(x).square().mean().backward()
        meter.add(1.0, {n: p.grad for n, p in model.named_parameters()})
    chosen = diagnosis.recommend([meter.result()], rho_limit=0.9)
    plan = FilterPlan.for_model(model, FilterSpec(ratio=chosen.ratios))
    assert [layer.cutoff for layer in plan.layers] == [
        reference.cutoff(chosen.as_table()[name], layer.d)
        for name, layer in zip(plan.names, plan.layers, strict=True)
    ]
    assert any(layer.cutoff for layer in plan.layers)
