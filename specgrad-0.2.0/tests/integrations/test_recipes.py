"""The recipes of docs/integrations.md with the real packages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from documented import (
    assert_filtered,
    begin,
    changes,
    follow,
    follow_in_parallel,
    low_share,
    recipes,
    train_alone,
)
from torch import nn

from specgrad_kernels import FilterPlan, FilterSpec

# filtering twice with it is not filtering once
NOT_IDEMPOTENT = FilterSpec("gaussian", sigma=2.0)


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "HF_HUB_OFFLINE": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }.items():
        monkeypatch.setenv(name, value)


def trainer(lightning, callbacks, **options):
    return lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def test_lightning():
    assert_filtered(follow("Lightning"))


def manual(classifier):
    """The module with its own backward and step."""

    class Manual(classifier):
        def __init__(self, net):
            super().__init__(net)
            self.automatic_optimization = False

        def training_step(self, batch, index):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, index))
            optimizer.step()

    return Manual


@pytest.mark.parametrize("automatic", [True, False])
def test_lightning_filters_once_a_step_until_the_end(automatic):
    names = follow("Lightning")
    model, expected = names["make_model"](), names["make_model"]()
    descend(expected, names)
    callback = names["SpectralFilter"](NOT_IDEMPOTENT)
    kind = names["Classifier"] if automatic else manual(names["Classifier"])
    trainer(names["lightning"], [callback]).fit(kind(model), names["loader"])
    assert_same(model, expected)
    assert len(callback.handles) == 1
    assert not callback.handles[0].hooks_dict_ref()


def descend(model, names):
    """Plain descent over the loader, with every gradient filtered once."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = FilterPlan.for_model(model, NOT_IDEMPOTENT)
    for x, y in names["loader"]:
        optimizer.zero_grad()
        names["loss_of"](model(x), y).backward()
        plan.filter_grads_()
        optimizer.step()


def assert_same(model, expected):
    for left, right in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-7)


def test_lightning_can_clip_after_the_filter():
    names = follow("Lightning")
    norms, lows = [], []

    class Steep(names["FilteredThenClipped"]):
        def training_step(self, batch, index):
            return 1000 * super().training_step(batch, index)

        def on_before_optimizer_step(self, optimizer):
            super().on_before_optimizer_step(optimizer)
            norms.append(nn.utils.get_total_norm([p.grad for p in self.parameters()]).item())
            lows.append(low_share(self.net[2].weight.grad))

    trainer(names["lightning"], []).fit(Steep(names["make_model"]()), names["loader"])
    assert norms == pytest.approx([1.0] * 4, rel=1e-4)
    assert max(lows) < 1e-4


def test_hugging_face_trainer():
    assert_filtered(follow("Hugging Face Trainer"))


def norm_of_step(names, callbacks, **options):
    """The length of one step of rate 1, and the share of low bins in it."""
    transformers = names["transformers"]
    names["model"] = names["make_model"]()
    arguments = transformers.TrainingArguments(
        "trainer",
        max_steps=1,
        per_device_train_batch_size=8,
        learning_rate=1.0,
        lr_scheduler_type="constant",
        optim="sgd",
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        **options,
    )
    wrapped = names["Classifier"](names["model"])
    transformers.Trainer(
        wrapped, arguments, train_dataset=names["rows"], callbacks=callbacks
    ).train()
    pairs = zip(names["model"].parameters(), names["start"].parameters(), strict=True)
    squares = [(after - before).square().sum().item() for after, before in pairs]
    return sum(squares) ** 0.5, max(map(low_share, changes(names)))


def test_hugging_face_order_of_clipping():
    names = follow("Hugging Face Trainer")
    bound = 1e-3
    clipped_first, low = norm_of_step(names, [names["SpectralFilter"]()], max_grad_norm=bound)
    assert low < 1e-3
    assert clipped_first < 0.999 * bound
    clipped_last, low = norm_of_step(names, [names["FilterThenClip"](bound)], max_grad_norm=0)
    assert low < 1e-3
    assert clipped_last == pytest.approx(bound, rel=1e-3)


def test_accelerate():
    names = follow("Accelerate")
    assert_filtered(names)
    assert type(names["optimizer"]).__name__ == "AcceleratedOptimizer"


def test_opacus():
    names = follow("Opacus")
    assert_filtered(names)
    assert type(names["optimizer"]).__name__ == "DPOptimizer"


def test_opacus_filters_the_noise_and_keeps_the_account():
    """The privacy spent with the filter is the privacy spent without it."""
    from opacus import PrivacyEngine

    spent, lows = [], []
    for filtered in (True, False):
        names = begin()
        engine = PrivacyEngine()
        torch.manual_seed(3)
        optimizer = torch.optim.SGD(names["model"].parameters(), lr=0.1)
        model, optimizer, loader = engine.make_private(
            module=names["model"],
            optimizer=optimizer,
            data_loader=names["loader"],
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=False,
        )
        if filtered:
            FilterPlan.for_model(model).attach(optimizer)
        for x, y in loader:
            optimizer.zero_grad()
            names["loss_of"](model(x), y).backward()
            optimizer.step()
        spent.append(engine.get_epsilon(1e-5))
        lows.append(max(map(low_share, changes(names))))
    assert spent[0] == spent[1] > 0
    assert lows[0] < 1e-4 < 1e-2 < lows[1]


def test_sharpness_aware_minimisation():
    assert_filtered(follow("Sharpness-aware minimisation"))


@pytest.mark.parametrize("calls", ["two steps", "closure"])
def test_sharpness_aware_minimisation_filters_once(calls):
    from pytorch_optimizer import SAM

    names = begin()
    model, expected = names["model"], names["make_model"]()
    loss_of, (x, y) = names["loss_of"], next(iter(names["loader"]))
    sharp = SAM(model.parameters(), torch.optim.SGD, rho=0.05, lr=0.1)
    FilterPlan.for_model(model, NOT_IDEMPOTENT).attach(sharp)
    by_hand = SAM(expected.parameters(), torch.optim.SGD, rho=0.05, lr=0.1)
    plan = FilterPlan.for_model(expected, NOT_IDEMPOTENT)
    loss_of(expected(x), y).backward()
    by_hand.first_step(zero_grad=True)
    loss_of(expected(x), y).backward()
    plan.filter_grads_()
    by_hand.second_step(zero_grad=True)

    def closure():
        loss = loss_of(model(x), y)
        loss.backward()
        return loss

    closure()
    if calls == "two steps":
        sharp.first_step(zero_grad=True)
        closure()
        sharp.second_step(zero_grad=True)
    else:
        sharp.step(closure)
    assert_same(model, expected)


def test_lookahead_is_unwrapped():
    from pytorch_optimizer import Lookahead

    names = begin()
    model, expected = names["model"], names["make_model"]()
    descend(expected, names)
    optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1), k=1000)
    FilterPlan.for_model(model, NOT_IDEMPOTENT).attach(optimizer)
    for x, y in names["loader"]:
        optimizer.zero_grad()
        names["loss_of"](model(x), y).backward()
        optimizer.step()
    assert_same(model, expected)


@pytest.mark.parametrize("title", ["Distributed data parallel", "FSDP2"])
def test_two_processes_train_as_one(title, tmp_path):
    mp.spawn(follow_in_parallel, args=(title, str(tmp_path)), nprocs=2)
    expected = train_alone()
    for change, exact in zip(torch.load(tmp_path / "kernels.pt"), expected, strict=True):
        assert low_share(change) < 1e-4
        assert float((change - exact).norm() / exact.norm()) < 1e-5


def test_weights_and_biases(monkeypatch, tmp_path):
    import wandb

    summary = {}
    finish = wandb.Run.finish

    def note_and_finish(run):  # a run without a server forgets its summary when it ends
        summary.update(dict(run.summary))
        finish(run)

    monkeypatch.setattr(wandb.Run, "finish", note_and_finish)
    follow("Weights & Biases")
    assert summary["round"] == 2
    assert 0 <= summary["test_accuracy"] <= 1
    assert list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))


def test_mlflow():
    names = follow("MLflow")
    (run,) = names["mlflow"].search_runs(output_format="list")
    assert run.data.metrics["round"] == 2
    assert 0 <= run.data.metrics["test_accuracy"] <= 1
    lines = (names["run"].path / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert run.data.metrics["test_accuracy"] == pytest.approx(last["test_accuracy"])


def test_every_recipe_is_run():
    here = Path(__file__).read_text()
    for title, blocks in recipes().items():
        assert not blocks or f'"{title}"' in here or "training libraries" in title, title
