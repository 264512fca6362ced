"""Show the summary of a run and load it back.

run = load_run("runs/first")
run.summary["final_accuracy"], run.rows()[-1]["train_loss"]
run.predict(images)
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specgrad_fl import models, storage
from specgrad_fl.config import Config
from specgrad_fl.errors import ConfigError, RunError
from specgrad_fl.own_code import check_allowed
from specgrad_fl.records import flattened
from specgrad_fl.runs import RunDirectory
from specgrad_fl.samples import Format, prepared
from specgrad_fl.vectors import FlatModel


def shown(summary: dict[str, Any]) -> dict[str, str]:
    """The numbers of a summary that a person reads first, rounded."""
    row = {
        "rounds": str(summary["rounds"]),
        "final %": f"{100 * summary['final_accuracy']:.1f}",
        "best %": f"{100 * summary['best_accuracy']:.1f}",
        "best round": str(summary["best_round"]),
        "chosen on": summary.get("chosen_on", "test"),
    }
    if "client_accuracy" in summary:
        clients = summary["client_accuracy"]
        row["client mean %"] = f"{100 * clients['mean']:.1f}"
        row["worst tenth %"] = f"{100 * clients['worst_decile']:.1f}"
    return row | {
        "s/round": f"{summary['seconds_per_round']:.2f}",
        "filter %": f"{100 * summary['filter_share']:.2f}",
        "peak MiB": f"{summary['peak_mib']:.0f}",
    }


def client_statistics(accuracies: Sequence[float]) -> dict[str, float]:
    """Over clients: the mean, the standard deviation, and the mean of the worst tenth.

    >>> client_statistics([0.5, 1.0])
    {'mean': 0.75, 'spread': 0.25, 'worst_decile': 0.5}
    """
    worst = sorted(accuracies)[: math.ceil(len(accuracies) / 10)]
    return {
        "mean": statistics.fmean(accuracies),
        "spread": statistics.pstdev(accuracies),
        "worst_decile": statistics.fmean(worst),
    }


class LoadedRun:
    """One run, finished or not."""

    def __init__(self, path: Path | str, allow: Iterable[str] = ()) -> None:
        self._allow = tuple(allow)
        self.directory = RunDirectory(Path(path))
        self.config: Config = self.directory.config()
        self.directory.check()

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The results of a finished run."""
        return self.directory.summary()

    def rows(self) -> list[dict[str, Any]]:
        """One flat record for each round: ``pandas.DataFrame(run.rows())`` is a table."""
        return [flattened(record) for record in self.directory.records()]

    def model(self, which: str = "best") -> nn.Module:
        """Build the model with the weights of the ``best`` evaluation, of the ``last`` stored
        round, or of the ``previous`` one."""
        paths = {"last": self.directory.last_path, "previous": self.directory.previous_path}
        if which not in ("best", *paths):
            raise ConfigError(f"which is {which!r}; choose best, last or previous")
        named = {"model": self.config.model}
        check_allowed(named, self._allow, str(self.directory.config_path))
        inputs = models.Inputs(**self._about["inputs"])
        model = models.build_seeded(
            self.config.model, inputs, self.config.model_options, self.config.seed
        )
        if which == "best":
            expected = self.directory.facts().get("best_digest", "")
            best, _ = storage.load_tensors(self.directory.best_path, expected)
            model.load_state_dict(best)
            return model.eval()
        flat = FlatModel(model)
        tensors, facts = storage.load_tensors(paths[which])
        self.directory.check_own(paths[which], facts)
        flat.weights.copy_(flat.vector(tensors, "model."))
        flat.write_buffers(tensors["buffers"])
        return flat.model.eval()

    @torch.inference_mode()
    def predict(self, samples: Any, which: str = "best", batch: int = 100) -> Tensor:
        """The class of each sample: ``uint8 [N, C, H, W]`` images as the data set had them, or
        ``[N, L]`` token ids."""
        form = Format(**self._about["format"])
        given = torch.as_tensor(samples)
        if form.shape and (given.dtype != torch.uint8 or tuple(given.shape[1:]) != form.shape):
            raise ConfigError(
                f"the samples are {given.dtype} of shape {list(given.shape)}; this model takes "
                f"uint8 images of shape [N, {', '.join(map(str, form.shape))}]"
            )
        model = self.model(which)
        parts = [model(prepared(part, form)).argmax(1) for part in given.split(batch)]
        return torch.cat(parts)

    @cached_property
    def _about(self) -> dict[str, Any]:
        path = self.directory.inputs_path
        self.directory.check_inputs(self.directory.facts())
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return {"inputs": dict(found["inputs"]), "format": dict(found["format"])}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{path} cannot be read ({error}); resume the run to write it again"
            ) from error


def load_run(path: Path | str, allow: Iterable[str] = ()) -> LoadedRun:
    """Open the run in a directory.

    allow: names of your own code, such as ``nets:Small``, that its configuration may run
    """
    return LoadedRun(path, allow)


def text_table(
    rows: Sequence[Sequence[str]],
    names: Sequence[str] = (),
    align: Callable[[str, int], str] = str.ljust,
) -> list[str]:
    """Lines of aligned columns, under their names if there are any.

    align: ``str.rjust`` for numbers; the first column is always to the left

    >>> text_table([("fedavg", "1"), ("fedprox", "22")])
    ['fedavg   1', 'fedprox  22']
    """
    lines = [names, *rows] if names else rows
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join([line[0].ljust(widths[0]), *map(align, line[1:], widths[1:])]).rstrip()
        for line in lines
    ]


def fitted(row: dict[str, str], room: int) -> str:
    """One row under its names; where that is wider than ``room``, one line for each name.

    >>> print(fitted({"accuracy": "1", "clients": "22"}, room=12))
    accuracy  1
    clients   22
    """
    lines = text_table([list(row.values())], list(row))
    return "\n".join(lines if len(lines[0]) <= room else text_table(list(row.items())))
