"""The filter in Flower applications of other people."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.serverapp import Grid
from specgrad_fl.flower import filtered
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks

APP = Path(__file__).parents[3] / "docs" / "flower_app"


def low_bins(change: torch.Tensor, ratio: float = 0.05) -> torch.Tensor:
    spectrum = torch.fft.rfft(change.double().flatten())
    return spectrum[: int(ratio * len(spectrum))].abs()


def net() -> nn.Module:
    torch.manual_seed(1)
    layers = (nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(256, 2))
    return nn.Sequential(*layers)


def step(model, x, optimizer=None, **options):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step(**options)


X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("given", [True, False])
def test_every_step_inside_is_filtered_and_none_outside(given):
    model = net()
    start = model[1].weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if given else None
    filtered(step)(model, X, optimizer)
    inside = model[1].weight.detach().clone()
    assert float(low_bins(inside - start).max()) < 1e-6
    assert float((inside - start).abs().max()) > 1e-4
    step(model, X, optimizer)
    assert float(low_bins(model[1].weight.detach() - inside).max()) > 1e-4


def test_other_models_are_left_alone():
    model, other = net(), net()
    start = other[1].weight.detach().clone()

    @filtered(ratio=0.2)
    def train(model, x):
        step(other, x)

    train(model, X)
    assert float(low_bins(other[1].weight.detach() - start).max()) > 1e-4


def test_the_hook_is_removed_after_a_failure():
    @filtered
    def train(model):
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        train(net())
    assert not _global_optimizer_pre_hooks


def test_a_closure_is_filtered_too():
    model = net()
    start = model[1].weight.detach().clone()

    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def closure():
            loss = model(X).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)

    filtered(train)(model)
    change = model[1].weight.detach() - start
    assert float(low_bins(change).max()) < 1e-6
    assert float(change.abs().max()) > 1e-4


def test_a_loss_without_parameters_is_no_second_model():
    @filtered
    def train(model, criterion, x):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        criterion(model(x), torch.zeros(4, 2)).backward()
        optimizer.step()

    model = net()
    start = model[1].weight.detach().clone()
    train(model, nn.MSELoss(), X)
    assert float(low_bins(model[1].weight.detach() - start).max()) < 1e-6


def test_refusals():
    with pytest.raises(TypeError, match="step was called with 0 models"):
        filtered(step)(X, X)
    with pytest.raises(TypeError, match="2 models"):
        filtered(lambda *models: None)(net(), net())
    with pytest.raises(TypeError, match=r"\(message, context\) handler, put the training loop"):
        filtered(lambda message, context: None)({}, {})
    with pytest.raises(ValueError, match="takes none of the model's 2 parameters"):
        filtered(step)(nn.Linear(2, 2), X)


class Nodes(Grid):
    """The stock strategy's way: everything is sent and received in one call."""

    def __init__(self, app, count):
        self.app, self.count = app, count

    def set_run(self, run):
        raise NotImplementedError

    run = property(set_run)
    create_message = push_messages = pull_messages = set_run

    def get_node_ids(self):
        return list(range(1, self.count + 1))

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            part = {"partition-id": node - 1, "num-partitions": self.count}
            message.metadata.__dict__["_message_id"] = f"to {node}"
            context = Context(1, node, part, RecordDict(), {})
            replies.append(self.app(message, context))
        return replies


def test_the_example_application(tmp_path, monkeypatch):
    """Flower's FedAvg with filtered clients: the mean of filtered changes is filtered."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(APP)
    client, server = (importlib.import_module(f"tinyapp.{n}") for n in ("client", "server"))
    start = client.make_model().state_dict()["2.weight"].clone()
    context = Context(1, 0, {}, RecordDict(), {"rounds": 1})
    server.app(Nodes(client.app, 2), context)
    change = torch.load("tinyapp.pt", weights_only=True)["2.weight"] - start
    assert float(change.abs().max()) > 1e-4
    assert float(low_bins(change).max()) < 1e-5
