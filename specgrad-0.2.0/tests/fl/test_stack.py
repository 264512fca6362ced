"""Stacked clients get the weights of single ones, but for rounding, whatever their number."""

from __future__ import annotations

import pytest
import torch
from representatives import only
from specgrad_fl import prepare, stack, stack_trial, training
from specgrad_fl.errors import ConfigError
from specgrad_fl.methods import METHODS
from specgrad_fl.samples import Format, Samples

NETS = """
import torch
from torch import nn
import torch.nn.functional as F

def linear(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))

def cnn(num_classes):
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(36, num_classes))

def batchnorm(num_classes):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, num_classes))

def dropout(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, num_classes))

class Own(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.head = nn.Linear(64, num_classes)

class Hidden(Own):
    def forward(self, x):
        return self.head(F.dropout(x.flatten(1), 0.5, self.training))

class Centred(Own):
    def forward(self, x):
        x = x.flatten(1)
        return self.head(x - x.mean(0))

class Loop(Own):
    def forward(self, x):
        return torch.stack([self.head(s.flatten()) for s in x if float(s.sum()) < 1e9])
"""
METHOD_OF_ONE_CLIENT = """
from specgrad_fl.methods import Method

class Mine(Method):
    name = "mine"

    def correction(self, local):
        return local.w * float(local.client)
"""
UNEQUAL = {"clients": 7, "active": 7, "batch_size": 32, "alpha": 0.3, "lr": 0.05}


@pytest.fixture(autouse=True)
def nets(tmp_path, monkeypatch):
    (tmp_path / "stack_nets.py").write_text(NETS + METHOD_OF_ONE_CLIENT)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def trained(make_engine):
    """Weights, states and losses of one round from random vectors of server and clients."""

    def train(**settings):
        made = make_engine(**{"model": "stack_nets:cnn", **UNEQUAL, **settings})
        draw = torch.Generator().manual_seed(1)
        vectors = [*made.board.sent.values(), *made.board.states.values()]
        for vector in vectors:
            vector.copy_(torch.randn(vector.shape, generator=draw) / 100)
        made.board.weights.copy_(made.flat.weights)
        reports = made.executor.train(0, made.config.lr, list(range(made.config.active)))
        assert [report.client for report in reports] == list(range(made.config.active))
        losses = torch.tensor([report.loss for report in reports], dtype=torch.float64)
        steps = [(report.steps, report.lr_sum, report.finite) for report in reports]
        board = made.board
        return [board.results.clone(), *map(torch.clone, board.states.values()), losses], steps

    return train


def same(found, expected, tolerance):
    """Tensors are equal within a part of the largest value, and numbers of steps exactly."""
    assert found[1] == expected[1]
    for one, other in zip(found[0], expected[0], strict=True):
        assert float((one - other).abs().max()) <= tolerance * float(other.abs().max())


@pytest.mark.parametrize("double", [False, True], ids=["float32", "float64"])
@pytest.mark.parametrize("method", METHODS)
def test_a_stack_trains_like_single_clients(trained, method, double):
    try:
        torch.set_default_dtype(torch.float64 if double else torch.float32)
        settings = {"method": method, "filter": "fft", "clip": 0.5}
        alone = trained(**settings)
        for size in ("3", "7"):  # two stacks of unequal clients and a rest, and one stack
            same(trained(**settings, stack=size), alone, 1e-12 if double else 1e-5)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "settings",
    [
        {"momentum": 0.9, "nesterov": True, "filter": "lap+fft"},
        {"momentum": 0.9, "momentum_place": "before", "filter": "fft-centralize"},
        {"optimizer": "adam", "lr": 0.01},
        {"method": "feddyn", "clip_scope": "corrected", "clip": 0.1, "filter_order": "1023"},
        {"method": "scaffold", "epochs_range": "1-3"},
        {"method": "fedsam", "options": {"filter_ascent": True}, "filter": "centralize"},
        {"model": "stack_nets:linear", "batch_size": 500},
        {"model": "resnet8", "filter": "fft", "clients": 3, "active": 3, "batch_size": 200},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_settings_of_the_local_steps(trained, settings):
    try:
        torch.set_default_dtype(torch.float64)
        same(trained(**settings, stack="3"), trained(**settings), 1e-12)
    finally:
        torch.set_default_dtype(torch.float32)


def test_augmented_batches_are_those_of_single_clients():
    draw = torch.Generator().manual_seed(0)
    arrays = {
        f"{part}_{name}": torch.randint(0, 9, shape, generator=draw, dtype=torch.uint8)
        for part in ("train", "test")
        for name, shape in (("x", (30, 6, 6, 3)), ("y", (30,)))
    }
    kind = Format((3, 6, 6), (0.4,) * 3, (0.2,) * 3, pad=2, flip=True, channels_last=True)
    samples = Samples(kind, arrays, torch.device("cpu"))
    held, epochs = [torch.arange(11), torch.arange(11, 20), torch.arange(20, 23)], [2, 1, 1]
    seeds = [torch.Generator().manual_seed(seed) for seed in range(3)]
    stacked = list(samples.stacked_batches(held, epochs, 4, seeds))
    for client in range(3):
        seed = torch.Generator().manual_seed(client)
        alone = [*map(samples.gather, samples.train_draws(held[client], epochs[client], 4, seed))]
        rows = [batch for batch in stacked if len(batch[0]) > client]
        assert len(rows) == len(alone)
        for (x, y), (xs, ys, counts) in zip(alone, rows, strict=True):
            assert counts[client] == len(y)
            assert torch.equal(xs[client, : len(y)], x)
            assert torch.equal(ys[client, : len(y)], y)


@pytest.mark.parametrize("method", only(["scaffold"], METHODS))
def test_a_stacked_run_resumes_to_the_byte(tmp_path, small, method):
    config = small(model="stack_nets:linear", method=method, stack="2", rounds=3, workers=2)
    whole = training.train(config, tmp_path / "whole")

    def stop(record, _):
        if record["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.train(config, tmp_path / "parts", watch=stop)
    allowed = ["stack_nets:linear"]
    parts = training.resume(tmp_path / "parts", changes={"workers": 1}, allow=allowed)
    assert parts.config().stack == "2"
    assert parts.last_path.read_bytes() == whole.last_path.read_bytes()


REFUSED = {
    "batchnorm": "model 'stack_nets:batchnorm' keeps 1.running_mean",
    "dropout": r"model 'stack_nets:dropout' has dropout \(1\)",
    "Hidden": r"model 'stack_nets:Hidden' cannot be stacked \(vmap: called random operation",
    "Centred": "the samples of a batch change each other's result in model 'stack_nets:Centred'",
    "Loop": r"model 'stack_nets:Loop' cannot be stacked \(vmap: It looks like you're calling",
}


@pytest.mark.parametrize("model", REFUSED)
def test_models_that_cannot_be_stacked_are_named(small, model):
    config = small(model=f"stack_nets:{model}", stack="4")
    with pytest.raises(ConfigError, match=f"stack is 4, and {REFUSED[model]}"):
        prepare.prepare(config)
    said = []
    resolved, _, _ = prepare.prepare(config.replace(stack="auto"), said.append)
    assert resolved.stack == "1"
    assert said[0].startswith("stack: clients one by one, since ")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "stack_nets:Mine"}, "Mine.correction is not declared to work on stacked"),
        ({"engine": "flower"}, "engine is 'flower', which trains clients one by one"),
        ({"amp": "bf16"}, "amp is 'bf16', which"),
        ({"compile": True}, "compile is True, which"),
        ({"filter": "fft", "filter_backend": "loop"}, "backend 'loop' takes one client's"),
    ],
)
def test_settings_that_rule_a_stack_out(small, settings, message):
    assert message in stack_trial._unsupported(small(**settings))


@pytest.mark.parametrize(("faster", "size"), [(True, 3), (False, 1)])
def test_auto_takes_what_is_faster(small, monkeypatch, faster, size):
    def seconds(trial, runner, count):
        return 1 / count if faster and isinstance(runner, stack.StackedRunner) else 1.0

    monkeypatch.setattr(stack_trial._Trial, "_seconds", seconds)
    config = small(model="stack_nets:linear", stack="auto")
    assert prepare.prepare(config)[0].clients_in_a_stack == size


def test_auto_does_not_try_a_model_that_two_of_which_are_too_large(small, monkeypatch):
    monkeypatch.setattr(stack_trial, "MOST_BYTES", 2**10)
    monkeypatch.delattr(stack_trial._Trial, "_weights_after")
    said = []
    config = small(model="stack_nets:linear", stack="auto")
    assert prepare.prepare(config, said.append)[0].stack == "1"
    assert "two clients take more than" in said[0]


@pytest.mark.parametrize("text", ["0", "-1", "many", ""])
def test_a_stack_is_a_number_or_auto(small, text):
    with pytest.raises(ConfigError, match="write a number of clients from 1 on, or auto"):
        small(stack=text)
