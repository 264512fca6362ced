"""Local optimizers and schedules, reduced to what is known: torch's own, and plain SGD."""

from __future__ import annotations

import math

import pytest
import torch
from specgrad_fl import prepare, training
from specgrad_fl.client import Optimizer
from specgrad_fl.config import Config
from specgrad_fl.engine import draw_clients
from specgrad_fl.errors import ConfigError, RunError
from specgrad_fl.records import essence

CPU = torch.device("cpu")


def descend(config: Config, decay: float) -> torch.Tensor:
    """Ten steps on a quadratic, as a client takes them."""
    w = torch.linspace(-1, 1, 7)
    curvature = torch.linspace(0.1, 2, 7)
    optimizer = Optimizer(config, 7, CPU)
    for _ in range(10):
        g = curvature * w
        optimizer.before_filter_(g)
        g.add_(w, alpha=decay)
        optimizer.after_filter_(g)
        w = w - 0.05 * g
    return w


def descend_with_torch(kind, decay: float, **settings) -> torch.Tensor:
    w = torch.nn.Parameter(torch.linspace(-1, 1, 7))
    optimizer = kind([w], lr=0.05, weight_decay=decay, **settings)
    for _ in range(10):
        w.grad = torch.linspace(0.1, 2, 7) * w.detach()
        optimizer.step()
    return w.detach()


@pytest.mark.parametrize(
    ("ours", "kind", "theirs"),
    [
        ({}, torch.optim.SGD, {}),
        ({"momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}),
        (
            {"momentum": 0.8, "optimizer_options": {"nesterov": True}},
            torch.optim.SGD,
            {"momentum": 0.8, "nesterov": True},
        ),
        ({"optimizer": "adam"}, torch.optim.Adam, {}),
    ],
)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_as_torch_has_it(ours, kind, theirs, decay):
    found = descend(Config(**ours), decay)
    assert torch.allclose(found, descend_with_torch(kind, decay, **theirs), rtol=1e-5, atol=1e-6)


def test_the_place_of_the_momentum_matters_only_for_what_comes_between():
    before = Config(momentum=0.9, optimizer_options={"momentum_place": "before"})
    after = Config(momentum=0.9)
    assert torch.allclose(descend(before, 0.0), descend(after, 0.0), rtol=1e-6)
    assert not torch.allclose(descend(before, 0.5), descend(after, 0.5), rtol=1e-2)


@pytest.mark.parametrize("settings", [{}, {"momentum_place": "before"}, {"nesterov": True}])
def test_no_momentum_is_plain_sgd(play, settings):
    plain = play(rounds=1, filter="fft").board.weights.clone()
    assert torch.equal(play(rounds=1, filter="fft", **settings).board.weights, plain)


def test_momentum_and_adam_train(play):
    plain = play(rounds=1).board.weights.clone()
    for settings in ({"momentum": 0.9}, {"optimizer": "adam", "lr": 1e-3}):
        found = play(rounds=1, **settings).board.weights
        assert torch.isfinite(found).all()
        assert not torch.equal(found, plain)


@pytest.mark.parametrize("method", ["scaffold", "fedcm"])
def test_methods_that_read_gradients_from_steps_refuse_other_steps(small, method):
    for settings in ({"momentum": 0.9}, {"optimizer": "adam"}):
        with pytest.raises(ConfigError, match=f"{method} takes the mean of a client's gradients"):
            prepare.prepare(small(method=method, **settings))


def test_schedules():
    decay = Config(lr=0.5, lr_decay=0.9)
    assert [decay.learning_rate(n) for n in range(4)] == [0.5 * 0.9**n for n in range(4)]
    steps = decay.replace(lr_schedule="steps", lr_step=2)
    assert [steps.learning_rate(n) for n in range(5)] == [0.5, 0.5, 0.45, 0.45, 0.5 * 0.9**2]
    assert steps.replace(lr_step=1).learning_rate(7) == decay.learning_rate(7)
    cosine = decay.replace(lr_schedule="cosine", rounds=8)
    assert cosine.learning_rate(0) == 0.5
    assert math.isclose(cosine.learning_rate(4), 0.25)
    assert cosine.learning_rate(7) > 0


def test_lost_clients():
    config = Config(active=10, clients=20, participation_options={"dropout": 0.3})
    whole = [draw_clients(config.replace(dropout=0.0), 20, n) for n in range(300)]
    kept = [draw_clients(config, 20, n) for n in range(300)]
    assert all(len(k) > 0 and set(k) <= set(w) for k, w in zip(kept, whole, strict=True))
    assert abs(sum(map(len, kept)) / 3000 - 0.7) < 0.05
    assert draw_clients(config.replace(dropout=0.99), 20, 5)


def test_partial_work_is_drawn_anew_and_again_the_same(tmp_path, small):
    config = small(epochs_range="1-3", dropout=0.4, rounds=2, clients=4, active=3)
    one = training.train(config, tmp_path / "one")
    two = training.train(config.replace(workers=2), tmp_path / "two")
    assert list(map(essence, one.records())) == list(map(essence, two.records()))
    assert one.last_path.read_bytes() == two.last_path.read_bytes()
    assert Config(participation_options={"epochs_range": "1-3"}).fewest_and_most_epochs == (1, 3)
    assert Config(epochs=4).fewest_and_most_epochs == (4, 4)
    for wrong in ("3", "0-2", "4-2", "a-b", "1-2-3"):
        with pytest.raises(ConfigError, match="epochs_range"):
            Config(participation_options={"epochs_range": wrong})


def test_a_finished_run_is_made_longer(tmp_path, small):
    short = training.train(small(rounds=2, method="feddyn"), tmp_path / "short")
    long = training.train(small(rounds=4, method="feddyn"), tmp_path / "long")
    training.resume(short.path, changes={"rounds": 4})
    assert list(map(essence, short.records())) == list(map(essence, long.records()))
    assert short.last_path.read_bytes() == long.last_path.read_bytes()
    assert short.summary()["rounds"] == 4
    assert short.config().digest == long.config().digest
    with pytest.raises(RunError, match="can be made longer, not shorter"):
        training.resume(short.path, changes={"rounds": 3})
    assert training.resume(short.path, changes={"rounds": 4}).finished


def test_what_cannot_be_made_longer(tmp_path, small):
    cosine = training.train(small(rounds=1, lr_schedule="cosine"), tmp_path / "cosine")
    with pytest.raises(RunError, match="the cosine of this run"):
        training.resume(cosine.path, changes={"rounds": 2})

    def interrupt(record, config):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.train(small(rounds=2), tmp_path / "stopped", interrupt)
    with pytest.raises(RunError, match="has not finished its 2 rounds"):
        training.resume(tmp_path / "stopped", changes={"rounds": 3})
