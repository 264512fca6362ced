"""A run read back: its settings, its numbers, and its model ready to use.

run = load_run("runs/first")
run.summary["final_accuracy"], run.rows()[-1]["train_loss"]
run.predict(images)
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specgrad_fl import checkpoint, models
from specgrad_fl.batches import Format, prepared
from specgrad_fl.config import Config
from specgrad_fl.errors import ConfigError, RunError
from specgrad_fl.flat import FlatModel
from specgrad_fl.records import flattened
from specgrad_fl.runs import RunDirectory


class LoadedRun:
    """One run, finished or not."""

    def __init__(self, path: Path | str) -> None:
        self.directory = RunDirectory(Path(path))
        self.config: Config = self.directory.config()

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The results of a finished run."""
        return self.directory.summary()

    def rows(self) -> list[dict[str, Any]]:
        """One flat record for each round: ``pandas.DataFrame(run.rows())`` is a table."""
        return [flattened(record) for record in self.directory.records()]

    def model(self, which: str = "best") -> nn.Module:
        """The model with the weights of the ``best`` evaluation or of the ``last`` round."""
        if which not in ("best", "last"):
            raise ConfigError(f"which is {which!r}; choose best or last")
        inputs = models.Inputs(**self._about["inputs"])
        model = models.build_seeded(
            self.config.model, inputs, self.config.model_options, self.config.seed
        )
        if which == "best":
            model.load_state_dict(checkpoint.load(self.directory.best_path)[0])
            return model.eval()
        flat = FlatModel(model)
        tensors = checkpoint.load(self.directory.last_path)[0]
        flat.weights.copy_(flat.vector({name: tensors[f"model.{name}"] for name in flat.segments}))
        flat.write_buffers(tensors["buffers"])
        return flat.model.eval()

    @torch.inference_mode()
    def predict(self, samples: Any, which: str = "best", batch: int = 100) -> Tensor:
        """The class of each sample: ``uint8 [N, C, H, W]`` images as the data set had them, or
        ``[N, L]`` token ids."""
        form = Format.parse(self._about["format"])
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
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return {"inputs": dict(found["inputs"]), "format": dict(found["format"])}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{path} cannot be read ({error}); resume the run to write it again"
            ) from error


def load_run(path: Path | str) -> LoadedRun:
    """The run in a directory."""
    return LoadedRun(path)
