"""Diagnoses of real runs: gradients, replay, local models, files and the command."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import specgrad_data
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from specgrad_fl import building, cli, config, engine, models, prepare, training
from specgrad_fl.errors import ConfigError, RunError
from specgrad_study import diagnosis
from specgrad_study.diagnosis import files, measure, replay, similarity
from specgrad_study.diagnosis.collect import Checkpoint, Collector, weight_tensors
from specgrad_study.diagnosis.report import Diagnosis, theory

from specgrad_kernels import FilterPlan, FilterSpec

QUICK = replay.Request(noise_batches=0)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of three rounds with a method that keeps client state."""
    settings = {
        "clients": 6, "active": 3, "rounds": 3, "batch_size": 64, "workers": 1,
        "method": "scaffold",
    }  # fmt: skip
    return training.train(config.Config(**settings), tmp_path_factory.mktemp("runs") / "run")


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def same(one: Checkpoint, two: Checkpoint) -> bool:
    return json.dumps(one.as_dict()) == json.dumps(two.as_dict())


def test_a_gradient_is_that_of_all_samples_of_the_client(small):
    settings = small()
    dataset = specgrad_data.load("digits")
    collector = Collector(settings, dataset, prepare.divide(settings, dataset))
    held = collector.partition[2]
    loss = collector.gradient(2)
    model = models.build_seeded("resnet8", building.inputs_of(dataset), None, settings.seed).eval()
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (dataset.mean, dataset.std))
    x = (dataset.train_x[held].float() / 255 - mean) / std
    expected = F.cross_entropy(model(x), dataset.train_y[held])
    expected.backward()
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(collector.flat.grads, flat, rtol=1e-3, atol=1e-5)


def test_a_checkpoint_is_measured_with_sample_weights(small):
    settings = small()
    dataset = specgrad_data.load("digits")
    collector = Collector(settings, dataset, prepare.divide(settings, dataset), QUICK)
    weights = collector.flat.weights.clone()
    found = collector.checkpoint(weights, [0, 3, 4])
    gradients = []
    for client in (0, 3, 4):
        collector.gradient(client)
        gradients.append(
            (len(collector.partition[client]), collector.flat.named(collector.flat.grads))
        )
    expected = measure(gradients, collector.filtered, FilterSpec(ratio=settings.ratio))
    assert found.snapshot.rho == expected.rho
    assert found.snapshot.delta_high == expected.delta_high
    assert found.snapshot.parseval_error < 1e-6
    assert torch.equal(collector.flat.weights, weights)
    again = collector.checkpoint(weights, [0, 3, 4])
    assert again.snapshot.delta_high == found.snapshot.delta_high


def test_noise_vanishes_where_a_batch_holds_all_samples(small):
    settings = small(batch_size=5000)
    dataset = specgrad_data.load("digits")
    collector = Collector(settings, dataset, prepare.divide(settings, dataset))
    quiet = collector.checkpoint(collector.flat.weights.clone(), [0, 1])
    assert quiet.noise.local < 1e-6 * quiet.snapshot.signal
    collector.config = settings.replace(batch_size=8)
    loud = collector.checkpoint(collector.flat.weights.clone(), [0, 1])
    assert loud.noise.local > 100 * quiet.noise.local
    assert loud.noise.averaged < loud.noise.local


def test_shown_tensors():
    model = models.build("resnet20", models.Inputs(10, 3, 32))
    shown = weight_tensors(model)
    assert len(shown) == 20
    assert not any("shortcut" in name or "norm" in name or "bias" in name for name in shown)


def test_a_replay_is_the_run(finished, tmp_path):
    """Played from the start, continued from the stored state, or read from it: the same."""
    before = contents(finished.path)
    settings = finished.config()
    anew = replay.along(settings, [0, 3], tmp_path / "a", QUICK)
    stored = replay.along(settings, [3], tmp_path / "b", QUICK, source=finished)
    assert [each.round for each in anew] == [0, 3]
    assert same(anew[1], stored[0])
    assert not same(anew[0], anew[1])
    assert anew[0].clients == engine.draw_clients(settings, 6, 0)
    assert contents(finished.path) == before
    assert not (tmp_path / "a" / "replay").exists()


def test_an_interrupted_diagnosis_goes_on(finished, tmp_path):
    heard: list[str] = []

    def interrupt(text: str) -> None:
        heard.append(text)
        if text.startswith("round 2: gradient"):
            raise KeyboardInterrupt

    settings = finished.config()
    with pytest.raises(KeyboardInterrupt):
        replay.along(settings, [0, 2, 3], tmp_path, QUICK, say=interrupt)
    heard.clear()
    found = replay.along(settings, [0, 2, 3], tmp_path, QUICK, say=heard.append)
    assert heard[0].startswith("round 2: gradient")
    whole = replay.along(settings, [0, 2, 3], tmp_path / "whole", QUICK)
    assert all(map(same, found, whole))
    heard.clear()
    replay.along(settings, [0, 2, 3], tmp_path, QUICK, say=heard.append)
    assert heard == []
    replay.along(settings, [0], tmp_path, replay.Request(noise_batches=1), say=heard.append)
    assert heard


def test_local_models(finished, tmp_path, make_engine):
    settings = finished.config()
    request = replay.Request(noise_batches=0, local=True, images=100)
    (found,) = replay.along(settings, [0], tmp_path, request)
    played = make_engine(method="scaffold")
    start = played.board.weights.clone()
    played.round(0)
    updates = torch.nn.functional.normalize((played.board.results - start).double(), dim=1)
    matrix = updates @ updates.T
    assert found.cosine == pytest.approx(float((matrix.sum() - 3) / 6), abs=1e-5)
    assert list(found.similarity) == ["layer1", "layer2", "layer3", "penultimate"]
    for rows in found.similarity.values():
        for i, row in enumerate(rows):
            assert row[i] == pytest.approx(1)
            assert row == pytest.approx([other[i] for other in rows])


def test_features_are_of_all_classes_though_the_file_is_sorted(finished):
    """The first images of a file sorted by class are of one class or two."""
    settings, dataset, partition = prepare.prepare(finished.config())
    by_class = dataset.test_y.argsort()
    dataset = replace(dataset, test_x=dataset.test_x[by_class], test_y=dataset.test_y[by_class])
    seen = []
    for seed in (0, 0, 1):
        request = replay.Request(images=100)
        collector = Collector(settings.replace(seed=seed), dataset, partition, request)
        found = similarity.features(collector.flat.model, collector.samples)
        assert {len(rows) for rows in found.values()} == {100}
        seen.append(collector.samples.test_y)
        assert seen[-1].bincount(minlength=10).min() >= 3
    assert seen[0].equal(seen[1])
    assert not seen[0].equal(seen[2])


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("vit_small", ["patch_embed", *(f"blocks.{i}" for i in range(6)), "penultimate"]),
        ("femnist_cnn", ["conv1", "conv2", "hidden", "penultimate"]),
        ("densenet121", ["conv1", "body.dense1", "body.trans1", "body.dense2", "body.trans2",
                         "body.dense3", "body.trans3", "body.dense4", "penultimate"]),
    ],
)  # fmt: skip
def test_stages_of_other_models(name, stages):
    model = models.build(name, models.Inputs(10, 3, 32)).eval()
    with similarity.recording(model) as kept, torch.inference_mode():
        model(torch.randn(4, 3, 32, 32))
    assert list(kept) == stages
    assert all(rows[0].dim() == 2 and len(rows[0]) == 4 for rows in kept.values())


def test_theory_begins_at_64_rounds(finished, tmp_path):
    (found,) = replay.along(finished.config(), [0], tmp_path, replay.Request(noise_batches=2))
    short = theory([found], finished.config(), samples=240)
    assert short["bounds"] is None
    long = theory([found], finished.config().replace(rounds=64), samples=240, smoothness=2.0)
    bounds = long["bounds"]
    assert bounds["steps"] == 4
    assert bounds["q_M"] == pytest.approx(3 / 15)
    assert bounds["gap"] == found.loss
    assert bounds["label"].startswith("diagnostic")
    full = bounds["full_participation"]
    assert full["bound"] == full["slope"] * 2 + full["constant"]


def test_full_participation_has_the_noise_of_all_clients(finished, tmp_path):
    """sigma bar^2 = sum p_k^2 sigma_k^2 over K clients is M / K of that over M like them."""
    (found,) = replay.along(finished.config(), [0], tmp_path, replay.Request(noise_batches=2))
    config = finished.config().replace(rounds=64)
    bounds = theory([found], config, samples=240)["bounds"]
    budget, noise, steps = diagnosis.budget([found.snapshot]), found.noise, bounds["steps"]
    share = len(found.clients) / config.clients
    assert share < 1
    drift = (36 * budget.measured + 12 * noise.local) / 64
    spread = 8 * noise.averaged * share / (steps * 8)
    expected = (drift + spread) / (1 - budget.rho)
    assert bounds["full_participation"]["constant"] == pytest.approx(expected)


def test_sources_of_the_gradient_by_hand(finished, tmp_path):
    """One client's update over its learning rates is the mean of its steps' gradients."""
    request = replay.Request(noise_batches=0, local=True, batch=True)
    (found,) = replay.along(finished.config(), [0], tmp_path, request)
    assert set(found.others) == {"batch", "update"}
    totals = {
        source: sum(layer.total for layer in found.by(source).layers.values())
        for source in ("full", "batch", "update")
    }
    # a mini-batch has noise of its own on top of what clients disagree about
    assert totals["batch"] > totals["full"] > 0
    assert totals["update"] > 0
    again = Checkpoint.parse(json.loads(json.dumps(found.as_dict())))
    assert again.by("update").layers.keys() == found.by("update").layers.keys()
    assert found.origin["cpu"]


def test_diagnose_by_another_source(finished, tmp_path, capsys):
    flags = ["--rounds=0", "--noise-batches=0", "--filters=none", "--quiet"]
    words = ["diagnose", str(finished.path), *flags]
    assert cli.main([*words, "--source=batch", f"--out={tmp_path}"]) == 0
    assert "by a full pass" in capsys.readouterr().out
    found = json.loads((tmp_path / "diagnosis.json").read_text())
    assert found["source"] == "batch"
    assert set(found["bands_by_source"]) == {"full", "batch"}
    assert found["bands"]["share"] == found["bands_by_source"]["batch"]["share"]
    assert cli.main([*words, "--source=sum", f"--out={tmp_path}"]) == 2
    assert "--source is 'sum'" in capsys.readouterr().err


def test_diagnose_the_sharpness(finished, tmp_path, capsys):
    flags = ["--rounds=0", "--noise-batches=0", "--filters=centralize", "--quiet"]
    words = ["diagnose", str(finished.path), "--sharpness", *flags, f"--out={tmp_path}"]
    assert cli.main(words) == 0
    found = json.loads((tmp_path / "diagnosis.json").read_text())["rounds"][0]["sharpness"]
    told = ", ".join(f"{label} {value:.1f}" for label, value in found.items())
    assert f"round 0: sharpness for steps with {told}" in capsys.readouterr().out
    assert 0 < found["centralize"] < found["no filter"]


def test_the_trainer_takes_recommended_ratios(finished, tmp_path, capsys, make_engine):
    out = tmp_path / "out"
    assert cli.main(["diagnose", str(finished.path), "--out", str(out), "--quiet"]) == 0
    printed = capsys.readouterr().out
    names = {path.name for path in out.iterdir()}
    assert names == {
        "bands.png", "diagnosis.json", "filter.png", "layers.png", "ratios.toml",
        "round-000003.json",
    }  # fmt: skip
    found = json.loads((out / "diagnosis.json").read_text())
    assert sum(found["bands"]["share"]) == pytest.approx(1)
    assert found["theory"]["label"] == "diagnostic"
    assert found["theory"]["parseval_error"] < 1e-6
    assert set(found["left_after_filter"]) == {"fft", "lap", "gaussian", "random", "fft_high"}
    for row in found["layers"]:
        assert row["layer"] in printed
    ratios = config.read_ratios(out / "ratios.toml")
    assert ratios == {row["name"]: row["ratio"] for row in found["recommendation"]["layers"]}

    flags = ["--rounds=1", "--clients=6", "--active=3", "--workers=1", "--quiet"]
    base = ["train", "--filter=fft", *flags]
    flag = f"--filter-ratios={out / 'ratios.toml'}"
    assert cli.main([*base, flag, f"--out={tmp_path / 'one'}"]) == 0
    assert cli.main([*base, f"--config={out / 'ratios.toml'}", f"--out={tmp_path / 'two'}"]) == 0
    assert cli.main([*base, f"--out={tmp_path / 'three'}"]) == 0
    runs = [engine.RunDirectory(tmp_path / name).config() for name in ("one", "two", "three")]
    assert runs[0].digest == runs[1].digest != runs[2].digest
    assert runs[0].filter_ratios == ratios
    weights = [
        (tmp_path / name / "last.safetensors").read_bytes() for name in ("one", "two", "three")
    ]
    assert weights[0] == weights[1] != weights[2]


def test_ratios_by_layer_reach_the_plan(make_engine):
    ratios = {"conv1.weight": 0.3, "layer3.0.conv2.weight": 0.0}
    made = make_engine(filter="fft", filter_ratios=ratios, ratio=0.1)
    plan = made.executor._runner.plan
    assert isinstance(plan, FilterPlan)
    cutoffs = {layer.name: layer.cutoff for layer in plan.layers}
    assert cutoffs["conv1.weight"] == 21
    assert cutoffs["layer3.0.conv2.weight"] == 0
    assert cutoffs["layer1.0.conv1.weight"] == 115


def test_a_recommendation_is_the_same_from_stored_rounds(finished, tmp_path):
    found = replay.along(finished.config(), [0, 1], tmp_path, QUICK)
    again = [Checkpoint.parse(json.loads(json.dumps(each.as_dict()))) for each in found]
    one, two = (Diagnosis("run", each) for each in (found, again))
    assert one.recommendation == two.recommendation
    assert one.band_shares == two.band_shares


@pytest.fixture
def gradient_files(tmp_path):
    draw = torch.Generator().manual_seed(0)
    paths, tensors = [], []
    for client in range(3):
        shapes = {"features.0.weight": (8, 3, 3, 3), "head.weight": (5, 8), "head.bias": (5,)}
        tensors.append({n: torch.randn(s, generator=draw) for n, s in shapes.items()})
        paths.append(tmp_path / f"client{client}.safetensors")
        save_file(tensors[-1], paths[-1])
    return paths, tensors


def test_gradient_files(gradient_files, tmp_path, capsys):
    paths, tensors = gradient_files
    found = files.from_files(paths, [5, 3, 2])
    expected = measure(zip([5, 3, 2], tensors, strict=True), ["features.0.weight"])
    assert found.snapshot.delta_high == expected.delta_high
    assert found.snapshot.selected == ("features.0.weight",)
    out = tmp_path / "out"
    names = list(map(str, paths))
    command = ["diagnose", "--gradients", *names, "--weights=5,3,2", "--select=weight", "--quiet"]
    assert cli.main([*command, "--ratio=0.2", "--filters=none", f"--out={out}"]) == 0
    assert "head.weight" in capsys.readouterr().out
    assert set(config.read_ratios(out / "ratios.toml")) == {"features.0.weight", "head.weight"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{run}", "--rounds=4"], "round 4 is not in this run of 3 rounds"),
        (["{run}", "--rounds=-1"], "round -1"),
        (["{run}", "--rounds=x"], "argument --rounds: 'x' is no list such as 0,1,2"),
        (["{run}", "--share=2"], "share is 2.0"),
        (["{run}", "--filters=ftf"], "--filters has 'ftf'"),
        (["{run}", "--orders=012"], "names 3 axes"),
        (["{run}", "--orders=ab"], "order must permute"),
        (["{run}", "--ratio=1.5"], "ratio must lie"),
        (["{run}", "--noise-batches=-1"], "--noise-batches is -1"),
        (["{run}", "--smoothness=0"], "--smoothness is 0"),
        (["{run}", "--gradients", "a"], "either a run directory or --gradients"),
        ([], "either a run directory or --gradients"),
        (["{tmp}"], "not a run directory"),
        (["--gradients", "{tmp}/a.safetensors", "{tmp}/b.safetensors"], "no gradient file"),
        (["--gradients", "{tmp}/junk", "{tmp}/junk"], "not a safetensors file"),
        (["--gradients", "{tmp}/junk"], "needs two clients"),
        (["--gradients", "{good}", "{good}", "--weights=1"], "1 numbers for 2 files"),
        (["--gradients", "{good}", "{good}", "--weights=1,0"], "weight is 0"),
        (["--gradients", "{good}", "{good}", "--select=nothing"], "matches none"),
        (["--gradients", "{good}", "{good}", "--select=("], "no regular expression"),
        (["--gradients", "{good}", "{good}", "--local"], "--local is about a run"),
        (["--gradients", "{good}", "{good}", "--sharpness"], "--sharpness is about a run"),
    ],
)
def test_refusals(arguments, message, finished, gradient_files, tmp_path, capsys):
    (tmp_path / "junk").write_text("junk")
    good = gradient_files[0][0]
    filled = [a.format(run=finished.path, tmp=tmp_path, good=good) for a in arguments]
    code = cli.main(["diagnose", *filled, f"--out={tmp_path / 'out'}"])
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert code == 2
    assert message in error


@pytest.mark.parametrize(
    ("ratios", "message"),
    [
        ({"conv1.weight": 1.0}, "choose a number in"),
        ({"conv1.weight": "much"}, "choose a number in"),
        ({"conv1.weight": True}, "choose a number in"),
    ],
)
def test_refused_ratios(ratios, message):
    with pytest.raises(ConfigError, match=message):
        config.Config(filter_ratios=ratios)


def test_refused_ratio_files(tmp_path, capsys):
    path = tmp_path / "ratios.toml"
    with pytest.raises(ConfigError, match="cannot read"):
        config.read_ratios(path)
    path.write_text("rounds = 3\n")
    with pytest.raises(ConfigError, match="no table"):
        config.read_ratios(path)
    path.write_text("[filter_ratios]\nconv2.weight = 0.1\n")
    assert (
        cli.main(["train", "--filter=fft", f"--filter-ratios={path}", f"--out={tmp_path}/r"]) == 2
    )
    assert "did you mean" in capsys.readouterr().err


def test_a_damaged_round_is_named(finished, tmp_path):
    replay.along(finished.config(), [0], tmp_path, QUICK)
    (tmp_path / "round-000000.json").write_text("{")
    with pytest.raises(RunError, match=r"round-000000\.json is damaged"):
        replay.along(finished.config(), [0], tmp_path, QUICK)
