"""Special cases of the methods, and the invariants they must keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import specgrad_data
import torch
import torch.nn.functional as F
from representatives import only
from specgrad_fl.engine import draw_clients
from specgrad_fl.errors import ConfigError
from specgrad_fl.methods import METHODS, Federation, build, weighted_sum
from specgrad_fl.models import Inputs, build_seeded
from specgrad_fl.partition import Partition
from specgrad_fl.seeding import generator
from specgrad_fl.storage import load_tensors
from specgrad_fl.training import train

from specgrad_kernels import FilterSpec, filter_grads_, select_layers


def weights(engine) -> torch.Tensor:
    return engine.board.weights.clone()


@pytest.fixture(scope="session")
def kept() -> dict[str, torch.Tensor]:
    """Final weights of what was played in this test process, by settings."""
    return {}


@pytest.fixture
def final(play, kept) -> Callable[..., torch.Tensor]:
    """The weights after all rounds; what several tests compare with is played once."""

    def final(**settings: Any) -> torch.Tensor:
        name = repr(sorted(settings.items()))
        if name not in kept:
            kept[name] = weights(play(**settings))
        return kept[name]

    return final


def all_states(engine, name: str) -> torch.Tensor:
    return torch.stack([engine.states.get(k)[name] for k in range(engine.config.clients)])


def centralised(config, partition: torch.Tensor, spec: FilterSpec | None) -> torch.Tensor:
    """SGD as anyone would write it, over the same batches."""
    digits = specgrad_data.load("digits")
    model = build_seeded("resnet8", Inputs(10, 1, 8), {}, config.seed)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=config.lr, weight_decay=config.weight_decay, foreach=False
    )
    scale = 1 / (255 * torch.tensor(digits.std))
    shift = -torch.tensor(digits.mean) / torch.tensor(digits.std)
    for number in range(config.rounds):
        draw = generator(config.seed, "client", number, 0, "data")
        for _ in range(config.epochs):
            order = partition[torch.randperm(len(partition), generator=draw)]
            for chosen in order.split(config.batch_size):
                x = torch.addcmul(shift, digits.train_x[chosen].float(), scale)
                optimizer.zero_grad()
                F.cross_entropy(model(x), digits.train_y[chosen]).backward()
                if spec is not None:
                    taken = select_layers(model).taken.values()
                    filter_grads_([p.grad for p in taken], method=spec.method, ratio=spec.ratio)
                optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("filter_name", only(["fft"], ["none", "fft"]))
def test_one_client_is_centralised_sgd_bit_for_bit(play, filter_name):
    engine = play(
        clients=1, active=1, partition="iid", rounds=2, epochs=2, lr_decay=1.0, clip=0.0,
        channels_last=False, filter=filter_name, batch_size=200,
    )  # fmt: skip
    spec = None if filter_name == "none" else FilterSpec("fft", 0.05)
    held = engine.executor._runner.partition[0]
    assert torch.equal(weights(engine), centralised(engine.config, held, spec))


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fedprox", {"mu": 0.0}),
        ("feddisco", {"a": 0.0}),
        ("fedlws", {"beta": 0.0, "tau_min": 0.0}),
        ("fedsam", {"rho": 0.0}),
    ],
)
@pytest.mark.parametrize("filter_name", only(["fft"], ["none", "fft"]))
def test_reduces_to_fedavg(final, method, options, filter_name):
    special = final(method=method, options=options, filter=filter_name)
    assert torch.equal(final(filter=filter_name), special)


ANY_OPTIONS = [("fedprox", {"mu": 0.1}), ("feddisco", {"a": 0.5})]
ANY_OPTIONS += [(method, {}) for method in ("fedlws", "fedsam", "feddyn", "scaffold", "fedcm")]


# the others have tests of their equations
@pytest.mark.parametrize(("method", "options"), only(ANY_OPTIONS[:3], ANY_OPTIONS))
def test_otherwise_differs_from_fedavg(final, method, options):
    assert not torch.equal(final(filter="none"), final(method=method, options=options))


def test_fedawa_first_round_of_equal_clients_is_fedavg(final):
    assert torch.equal(final(rounds=1), final(rounds=1, method="fedawa"))


def test_feddisco_without_bonus_is_fedavg_for_unequal_clients(small, tmp_path):
    digits = specgrad_data.load("digits")
    sizes = torch.tensor([20, 60, 120, 200, 38, 400])
    owned = torch.repeat_interleave(torch.arange(6), sizes)
    np.savez(
        tmp_path / "own.npz",
        x_train=digits.train_x[: len(owned)].numpy(),
        y_train=digits.train_y[: len(owned)].numpy(),
        x_test=digits.test_x.numpy(),
        y_test=digits.test_y.numpy(),
        writer_train=owned.numpy(),
    )
    natural = {
        "dataset": f"npz:{tmp_path / 'own.npz'}",
        "data_options": {"channels": "first"},
        "partition": "natural",
        "clients": 0,
    }

    def final(**settings) -> dict[str, torch.Tensor]:
        run = train(small(**natural, **settings), tmp_path / f"run{len(list(tmp_path.iterdir()))}")
        assert sorted(map(len, Partition.load(run.partition_path).clients)) == sorted(sizes)
        return load_tensors(run.last_path)[0]

    plain = final()
    disco = final(method="feddisco", options={"a": 0.0, "b": 0.0})
    skewed = final(method="feddisco", options={"a": 0.0, "b": 0.5})
    for name, expected in plain.items():
        assert torch.allclose(disco[name], expected, rtol=0, atol=1e-6)
    assert any(not torch.allclose(skewed[n], plain[n], rtol=0, atol=1e-4) for n in plain)


def test_scaffold_first_round_is_fedavg(final):
    """All control variates are zero, and equal clients make the mean the weighted one."""
    assert torch.equal(final(rounds=1), final(rounds=1, method="scaffold"))
    assert not torch.equal(final(rounds=2), final(rounds=2, method="scaffold"))


def test_feddyn_without_alpha_trains_clients_like_fedavg(play):
    """With alpha -> 0 the regulariser vanishes; the server's mean of the past remains."""
    plain = play(rounds=1)
    dynamic = play(rounds=1, method="feddyn", options={"alpha": 0.0})
    assert torch.equal(plain.board.results, dynamic.board.results)
    restored = weights(dynamic) - dynamic.server["h"]
    assert torch.allclose(weights(plain), restored, rtol=0, atol=1e-6)


def test_feddyn_server_memory_is_the_mean_over_all_clients(play):
    engine = play(method="feddyn", rounds=4, active=2)
    mean = all_states(engine, "h").double().mean(0)
    assert torch.allclose(engine.server["h"].double(), mean, rtol=0, atol=1e-6)
    assert float(mean.norm()) > 1e-3
    seen = {k for record in engine.records for k in record["clients"]}
    for client in set(range(engine.config.clients)) - seen:
        assert not all_states(engine, "h")[client].any()


def test_scaffold_server_variate_is_the_mean_over_all_clients(play):
    engine = play(method="scaffold", rounds=4, active=2)
    mean = all_states(engine, "c_k").double().mean(0)
    scale = float(mean.abs().max())
    assert scale > 1e-3
    assert torch.allclose(engine.server["c"].double(), mean, rtol=0, atol=2e-6 * max(1, scale))


def test_scaffold_variate_is_the_mean_gradient_of_the_path(play):
    """Without clip and decay, one step of lr from w_t: c_k is the filtered data gradient."""
    engine = play(
        method="scaffold", rounds=1, clip=0.0, weight_decay=0.0, batch_size=500, filter="fft"
    )
    client = engine.records[0]["clients"][0]
    runner = engine.executor._runner
    gradient = (engine.board.results[0] - _initial(engine)) / -engine.config.lr
    assert torch.allclose(engine.states.get(client)["c_k"], gradient, rtol=1e-3, atol=1e-6)
    spectrum = torch.fft.rfft(
        engine.flat.named(engine.states.get(client)["c_k"])["layer1.0.conv1.weight"].flatten()
    )
    assert runner.plan is not None
    assert float(spectrum[:57].abs().max()) < 1e-3 * float(spectrum.abs().max())


def _initial(engine) -> torch.Tensor:
    model = build_seeded(engine.config.model, Inputs(10, 1, 8), {}, engine.config.seed)
    return engine.flat.vector(model.state_dict())


def test_fedcm_first_round_runs_at_alpha_times_the_learning_rate(play):
    slow = play(rounds=1, lr=0.05, weight_decay=0.0)
    mixed = play(rounds=1, lr=0.1, weight_decay=0.0, method="fedcm", options={"alpha": 0.5})
    assert torch.allclose(weights(slow), weights(mixed), rtol=0, atol=1e-6)


def test_fedcm_momentum_is_the_mean_direction(play):
    engine = play(rounds=1, method="fedcm")
    steps = -(-engine.sizes[0].item() // engine.config.batch_size)
    change = weights(engine) - _initial(engine)
    expected = -change / (steps * engine.config.lr)
    assert torch.allclose(engine.server["m"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("filter_name", ["fft", "lap", "gaussian"])
def test_ratio_zero_is_no_filter_bit_for_bit(final, filter_name):
    assert torch.equal(final(filter="none"), final(filter=filter_name, ratio=0.0))


@pytest.mark.parametrize("method", only(["fedsam", "scaffold"], METHODS))
def test_every_method_works_with_the_filter(play, method):
    filtered = play(method=method, filter="fft", rounds=2)
    plain = play(method=method, rounds=2)
    assert torch.isfinite(weights(filtered)).all()
    assert not torch.equal(weights(filtered), weights(plain))
    assert filtered.records[-1]["filter_share"] > 0
    assert plain.records[-1]["filter_share"] == 0


def test_aggregation_commutes_with_the_filter():
    draw = torch.Generator().manual_seed(3)
    updates = torch.randn(5, 16 * 16 * 9, generator=draw, dtype=torch.float64)
    shares = torch.rand(5, generator=draw, dtype=torch.float64)
    shares /= shares.sum()
    after = weighted_sum(updates, shares)
    filter_grads_([after], ratio=0.05)
    before = updates.clone()
    filter_grads_([before], ratio=0.05, batch_dims=1)
    assert torch.allclose(weighted_sum(before, shares), after, rtol=0, atol=1e-13)


def test_feddisco_refuses_a_target_that_lacks_a_class():
    histograms = torch.tensor([[5, 5, 0], [0, 5, 5]])
    facts = {"sizes": histograms.sum(1), "histograms": histograms, "size": 4, "groups": ()}
    target = torch.tensor([3, 3, 0])
    lacking = Federation(**facts, test_histogram=target)
    with pytest.raises(ConfigError, match="lacks class 2"):
        build("feddisco", {"target": "test"}, lacking)
    finite = build("feddisco", {"target": "test", "distance": "l1"}, lacking).distances
    assert finite.tolist() == pytest.approx([0.0, 1.0])
    facts["histograms"] = histograms * torch.tensor([1, 1, 0])
    nobody_has_it = Federation(**facts, test_histogram=target)
    found = build("feddisco", {"target": "test"}, nobody_has_it).distances
    assert found.tolist() == pytest.approx([0.0, np.log(2)])


@pytest.mark.parametrize("clip_scope", ["data", "corrected"])
def test_only_the_data_gradient_is_filtered(make_engine, monkeypatch, clip_scope):
    """A correction that lies wholly in the filtered band arrives whole, and nothing else there."""
    constant = 1e-3
    monkeypatch.setattr(
        METHODS["fedavg"], "correction", lambda self, local: torch.full_like(local.w, constant)
    )
    engine = make_engine(filter="fft", weight_decay=0.0, clip=0.0, clip_scope=clip_scope)
    start = engine.board.weights.clone()
    client = draw_clients(engine.config, engine.config.clients, 0)[0]
    steps = -(-int(engine.sizes[client]) // engine.config.batch_size)
    engine.round(0)
    change = engine.flat.named(engine.board.results[0] - start)["layer1.0.conv1.weight"].double()
    assert float(change.mean()) == pytest.approx(-engine.config.lr * steps * constant, rel=1e-3)
    assert float(change.std()) > 0.1 * abs(float(change.mean()))


@pytest.mark.parametrize("method", only(["feddyn"], ["fedprox", "feddyn"]))
def test_clip_scopes_agree_while_nothing_is_clipped(play, method):
    data_scope = play(method=method, clip=1e6, rounds=1)
    corrected = play(method=method, clip=1e6, clip_scope="corrected", rounds=1)
    assert torch.allclose(weights(data_scope), weights(corrected), rtol=0, atol=1e-5)
    tight = play(method=method, clip=0.05, rounds=1)
    tight_corrected = play(method=method, clip=0.05, clip_scope="corrected", rounds=1)
    assert not torch.allclose(weights(tight), weights(tight_corrected), rtol=0, atol=1e-4)
