"""Draws, batches, evaluation, mixed precision, and the flat model."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest
import specgrad_data
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from representatives import only
from specgrad_fl import machine, training
from specgrad_fl.client import LossScale
from specgrad_fl.config import Config
from specgrad_fl.engine import draw_clients, evaluates
from specgrad_fl.errors import ConfigError, Diverged, RunError
from specgrad_fl.models import Inputs, build
from specgrad_fl.progress import silent
from specgrad_fl.runs import RunDirectory
from specgrad_fl.samples import Format, Samples, stored
from specgrad_fl.storage import ClientStates
from specgrad_fl.vectors import FlatModel
from torch import nn


@given(st.integers(1, 50), st.integers(0, 10), st.data())
def test_uniform_draw(clients, seed, draw):
    active = draw.draw(st.integers(1, clients))
    config = Config(active=active, clients=clients, seed=seed)
    drawn = draw_clients(config, clients, 3)
    assert drawn == sorted(set(drawn))
    assert len(drawn) == active
    assert set(drawn) <= set(range(clients))
    assert drawn == draw_clients(config, clients, 3)


def test_every_client_is_drawn_equally_often():
    config = Config(active=5, clients=20)
    counts = torch.zeros(20)
    for number in range(2000):
        counts[draw_clients(config, 20, number)] += 1
    assert float((counts / 2000 - 0.25).abs().max()) < 0.05


def test_bernoulli_draw_is_never_empty_and_has_the_right_mean():
    config = Config(active=2, clients=20, participation_options={"sampling": "bernoulli"})
    sizes = [len(draw_clients(config, 20, number)) for number in range(1000)]
    assert min(sizes) >= 1
    assert len(set(sizes)) > 3
    assert abs(sum(sizes) / 1000 - 2 / (1 - 0.9**20)) < 0.15


def test_evaluation_schedule():
    config = Config(rounds=20, eval_every=6, eval_tail=3)
    assert [n for n in range(1, 21) if evaluates(config, n)] == [6, 12, 18, 19, 20]


def images(pad: int, flip: bool, channels_last: bool = True) -> Samples:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(1, 256, (20, 6, 6, 3), generator=draw, dtype=torch.uint8)
    y = torch.arange(20)
    kind = Format((3, 6, 6), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), pad, flip, channels_last)
    arrays = {"train_x": x, "train_y": y, "test_x": x, "test_y": y}
    return Samples(kind, arrays, torch.device("cpu"))


def normalised(samples: Samples) -> torch.Tensor:
    """The plain way to the same numbers."""
    mean = torch.tensor(samples.form.mean)[:, None, None]
    std = torch.tensor(samples.form.std)[:, None, None]
    return (samples.train_x.permute(0, 3, 1, 2).float() / 255 - mean) / std


def trained(samples: Samples, *drawing):
    """Batches of one client, as they are trained."""
    return map(samples.gather, samples.train_draws(*drawing))


def test_batches_without_augmentation():
    samples = images(0, False)
    expected = normalised(samples)
    seen = []
    for x, y in trained(samples, torch.arange(3, 20), 2, 5, torch.Generator()):
        assert torch.allclose(x, expected[y], atol=1e-5)
        assert x.is_contiguous(memory_format=torch.channels_last)
        seen += y.tolist()
    assert sorted(seen[:17]) == sorted(seen[17:]) == list(range(3, 20))
    assert seen[:17] != seen[17:]


@pytest.mark.parametrize("channels_last", [True, False])
def test_augmented_image_is_a_shifted_or_flipped_original(channels_last):
    samples = images(2, True, channels_last)
    originals = normalised(samples)
    kinds = set()
    for x, y in trained(samples, torch.arange(20), 40, 7, torch.Generator().manual_seed(1)):
        for image, label in zip(x, y.tolist(), strict=True):
            kinds.add(match(image, originals[label]))
    assert len(kinds) == 2 * 25
    assert {flip for flip, _, _ in kinds} == {True, False}


def match(image: torch.Tensor, original: torch.Tensor) -> tuple[bool, int, int]:
    """Flip and offset that make the image: flipped first, padded with zeros, cropped."""
    for flip in (False, True):
        source = original.flip(-1) if flip else original
        padded = nn.functional.pad(source, (2, 2, 2, 2))
        for top in range(5):
            for left in range(5):
                if torch.allclose(image, padded[:, top : top + 6, left : left + 6], atol=1e-5):
                    return flip, top, left
    raise AssertionError("no flip and offset give this image")


def test_half_of_the_images_are_not_cropped():
    samples = images(2, False)
    originals = normalised(samples)
    batches = trained(samples, torch.arange(20), 50, 20, torch.Generator().manual_seed(1))
    offsets = [
        match(i, originals[label]) for x, y in batches for i, label in zip(x, y, strict=True)
    ]
    plain = sum(offset == (False, 2, 2) for offset in offsets) / len(offsets)
    assert abs(plain - (0.5 + 0.5 / 25)) < 0.06


def test_tokens_pass_through():
    tokens = torch.arange(12).view(3, 4)
    kind = Format((), (), (), 0, False, False)
    labels = torch.tensor([0, 1, 0])
    arrays = {"train_x": tokens, "train_y": labels, "test_x": tokens, "test_y": labels}
    samples = Samples(kind, arrays, torch.device("cpu"))
    ((x, y),) = trained(samples, torch.tensor([1]), 1, 5, torch.Generator())
    assert x.tolist() == [[4, 5, 6, 7]]
    assert y.tolist() == [1]


def test_digits_are_never_augmented():
    kind, _ = stored(specgrad_data.load("digits"), augment=True, channels_last=True)
    assert (kind.pad, kind.flip) == (0, False)


def test_grey_images_are_stored_in_one_layout():
    """Their one channel may have any stride, and kernels that round differently ask for it."""
    digits = specgrad_data.load("digits")
    for stride in (1, 64):
        x = digits.train_x.clone().as_strided(digits.train_x.shape, (64, stride, 8, 1))
        _, arrays = stored(dataclasses.replace(digits, train_x=x), True, channels_last=True)
        assert arrays["train_x"].stride() == (64, 8, 1, 1)


def test_flat_model_shares_memory_with_its_parameters():
    model = build("resnet8", Inputs(10, 1, 8))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    flat = FlatModel(model)
    for name, value in flat.named(flat.weights).items():
        assert torch.equal(value, before[name])
    assert torch.equal(flat.vector(before), flat.weights)
    model(torch.randn(2, 1, 8, 8)).sum().backward()
    grads = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert torch.equal(flat.grads, grads)
    assert grads.any()
    flat.weights.zero_()
    assert not any(p.any() for p in model.parameters())


def test_flat_model_leaves_frozen_parameters_alone():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    assert list(FlatModel(model).segments) == ["1.weight", "1.bias"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(2, 2).double(), "weight is torch.float64"),
        (nn.Linear(2, 2).requires_grad_(False), "no trainable parameter"),
    ],
)
def test_flat_model_refusals(model, message):
    with pytest.raises(RunError, match=message):
        FlatModel(model)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=25), st.integers(0, 4))
def test_client_states_remember_the_last_stored(tmp_path_factory, actions, capacity):
    """Whatever is kept in memory, and wherever a checkpoint falls, reads give the last put."""
    folder = tmp_path_factory.mktemp("states")
    limit = capacity * 4 * 3 / 2**20
    states = ClientStates(folder, ("h",), 3, limit)
    expected: dict[int, float] = {}
    stored_rounds: dict[int, int] = {}
    digests: dict[int, str] = {}
    at_checkpoint: dict[int, float] = {}
    for number, (client, checkpointed) in enumerate(actions, start=1):
        states.put(client, number, {"h": torch.full((3,), float(number))})
        expected[client] = float(number)
        if checkpointed:
            stored_rounds, digests = states.flush(), dict(states.digests)
            states.sweep()
            at_checkpoint = dict(expected)
        assert len(states._recent) <= capacity
        for known in range(6):
            assert states.get(known)["h"].tolist() == [expected.get(known, 0.0)] * 3
    revived = ClientStates(folder, ("h",), 3, limit)
    revived.restore(stored_rounds, digests)
    for known in range(6):
        assert revived.get(known)["h"].tolist() == [at_checkpoint.get(known, 0.0)] * 3
    assert len(list(folder.iterdir())) == len(at_checkpoint)


@pytest.mark.parametrize("amp", only(["fp16"], ["bf16", "fp16"]))
def test_mixed_precision_trains(tmp_path, small, amp):
    """In a process of its own, where instructions that virtual machines lack are left out."""
    flags = ["--clients=24", "--active=1", "--rounds=1", "--filter=fft", "--workers=1"]
    line = ["train", *flags, f"--amp={amp}", f"--out={tmp_path / amp}", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "specgrad_fl.cli", *line],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "does not work on this CPU" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    config = small(batch_size=50, clients=24, active=1, filter="fft", rounds=1)
    plain = training.train(config, tmp_path / "plain")
    mixed = RunDirectory(tmp_path / amp)
    assert mixed.last_path.read_bytes() != plain.last_path.read_bytes()
    losses = [run.records()[0]["train_loss"] for run in (mixed, plain)]
    assert abs(losses[0] - losses[1]) < 0.05


def test_a_cpu_without_mixed_precision_is_told_so(small, monkeypatch):
    monkeypatch.setattr(machine, "_AMP_PROBE", "import os, signal; os.kill(os.getpid(), 4)")
    monkeypatch.setattr(machine, "_amp_failure", machine._amp_failure.__wrapped__)
    with pytest.raises(ConfigError, match=r"amp 'bf16' does not work .* ends with signal 4"):
        machine.check_amp(small(amp="bf16"))
    machine.check_amp(small(amp="off"))


def test_mixed_precision_is_tried_once_a_process(small, monkeypatch):
    """A run asks before it begins and again before its rounds."""
    tried = []
    worked = subprocess.CompletedProcess([], 0)
    monkeypatch.setattr(subprocess, "run", lambda *words, **_: tried.append(words) or worked)
    machine._amp_failure.cache_clear()
    for amp in ("bf16", "bf16", "fp16"):
        machine.check_amp(small(amp=amp))
    machine._amp_failure.cache_clear()
    assert len(tried) == 2


@pytest.mark.slow
@pytest.mark.compiles
def test_compiled_model_trains(play, tmp_path, monkeypatch):
    (tmp_path / "nets_to_compile.py").write_text(
        "from torch import nn\n"
        "def make(num_classes, in_channels):\n"
        "    # no kernel that must be generated: the C++ compiler would take most of the time\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64 * in_channels, num_classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    compiled = play(model="nets_to_compile:make", compile=True, rounds=1)
    plain = play(model="nets_to_compile:make", rounds=1)
    assert torch.allclose(compiled.board.weights, plain.board.weights, atol=1e-3)


def test_evaluation_is_a_small_part_by_default(make_engine):
    """From the configuration alone: samples evaluated against samples trained."""
    config = make_engine(eval_every=0, rounds=100, active=6).config
    evaluated = sum(evaluates(config, n) for n in range(1, 101)) * 359 * 0.3
    assert evaluated / (100 * 1438) < 0.11


def test_active_mean_scores_another_model(play):
    server = play(method="feddyn", rounds=2)
    active = play(method="feddyn", rounds=2, eval_target="active_mean")
    assert torch.equal(server.board.weights, active.board.weights)
    assert not torch.equal(server.board.scored, active.board.scored)
    assert torch.equal(server.board.scored, server.board.weights)


@pytest.mark.parametrize("method", ["feddyn", "scaffold"])
def test_active_mean_is_the_mean_that_the_method_forms(make_engine, method):
    engine = make_engine(method=method, eval_target="active_mean")
    engine.sizes = torch.arange(1, 7)
    engine.round(0)
    mean = engine.board.results[:3].double().mean(0)
    assert torch.allclose(engine.board.scored.double(), mean, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", ["scaffold", "fedcm"])
def test_clients_that_took_no_step_change_nothing(make_engine, method, monkeypatch):
    """As when mixed precision skips every step for an overflow."""
    engine = make_engine(method=method)
    engine.round(0)
    server = {name: vector.clone() for name, vector in engine.server.items()}
    before = engine.board.weights.clone()
    monkeypatch.setattr(LossScale, "unscale_", lambda self, grads: False)
    engine.round(1)
    assert torch.equal(engine.board.weights, before)
    for name, vector in engine.server.items():
        assert torch.allclose(vector, server[name], rtol=0, atol=1e-7)
        assert vector.any()


def test_a_divergence_says_what_is_kept(make_engine):
    engine = make_engine(lr=1e30, clip=0.0, checkpoint_every=10)
    with pytest.raises(Diverged, match="there is no checkpoint"):
        engine.play(silent)


def test_server_learning_rate(play):
    still = play(rounds=1, server_lr=0.0).board.weights
    half = play(rounds=1, server_lr=0.5).board.weights
    whole = play(rounds=1).board.weights
    assert torch.allclose(half, (still + whole) / 2, rtol=0, atol=1e-6)
    assert not torch.equal(still, whole)
