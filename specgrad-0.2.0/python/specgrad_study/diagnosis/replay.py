"""A diagnosis along a run: its rounds are played again, and measured where that was asked for.

A run is the same whenever it is played, so a copy goes through the same weights and draws the same
clients as the run itself, which is never touched. Every measured round is stored at once: an
interrupted diagnosis goes on where it stopped.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from specgrad_fl import engine, machine, prepare, storage
from specgrad_fl.config import Config
from specgrad_fl.engine import Engine
from specgrad_fl.errors import RunError
from specgrad_fl.runs import RunDirectory
from torch import Tensor

from specgrad_study.diagnosis.alignment import Cosines
from specgrad_study.diagnosis.collect import USUAL, Checkpoint, Collector, Request, Say, say_nothing
from specgrad_study.diagnosis.similarity import features, similarity


class _Store:
    """Measured rounds as files of one folder."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder
        self._key = key

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number:06d}.json"

    def get(self, number: int) -> Checkpoint | None:
        try:
            fields = json.loads(self._path(number).read_text(encoding="utf-8"))
            return Checkpoint.parse(fields["checkpoint"]) if fields["key"] == self._key else None
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{self._path(number)} is damaged ({error!r}); remove it and try again"
            ) from error

    def held(self, numbers: Sequence[int]) -> list[Checkpoint]:
        return [found for number in numbers if (found := self.get(number))]

    def put(self, measured: Checkpoint) -> None:
        fields = {"key": self._key, "checkpoint": measured.as_dict()}
        storage.write_text(self._path(measured.round), json.dumps(fields) + "\n")


def stored(config: Config, out: Path, request: Request) -> list[Checkpoint]:
    """The rounds that :func:`along` has measured so far, in their order."""
    store = _Store(out, request.key(config))
    numbers = sorted(int(path.stem.removeprefix("round-")) for path in out.glob("round-*.json"))
    return store.held(numbers)


def along(
    config: Config,
    rounds: Sequence[int],
    out: Path,
    request: Request = USUAL,
    *,
    source: RunDirectory | None = None,
    say: Say = say_nothing,
) -> list[Checkpoint]:
    """Measure the clients that are active after each number of ``rounds`` done.

    out: folder for the measured rounds, and for the copy of the run while it is played
    source: the run to be diagnosed; without it, one is played from ``config``
    """
    wanted = sorted(set(rounds))
    if not wanted:
        raise RunError("rounds is empty; give at least one number of rounds done")
    for number in wanted:
        if not 0 <= number <= config.rounds:
            raise RunError(
                f"round {number} is not in this run of {config.rounds} rounds; choose numbers of "
                f"rounds done, from 0 to {config.rounds}"
            )
    copy = RunDirectory(out / "replay")
    with copy.locked():
        config, dataset, partition = prepare.prepare(config)
        if source is not None:
            partition = source.partition()
            partition.check(dataset)
        store = _Store(out, request.key(config))
        missing = [number for number in wanted if store.get(number) is None]
        if missing:
            torch.set_num_threads(config.threads)
            _prepare(copy, config, source, missing[0])
            collector = Collector(config, dataset, partition, request)
            trains = request.local or missing[-1] > copy.load_rounds()
            played = config if trains else config.replace(workers=1)
            player = Engine(played, dataset, partition, copy).start()
            try:
                _play(player, collector, missing, store, say)
            finally:
                player.close()
    shutil.rmtree(copy.path)
    return store.held(wanted)


def _prepare(copy: RunDirectory, config: Config, source: RunDirectory | None, first: int) -> None:
    """Begin the copy: where an interrupted one stopped, where the run was stored, or anew."""
    if copy.exists and copy.config().digest == config.digest and copy.load_rounds() <= first:
        return
    for path in copy.path.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "lock":
            path.unlink()
    if source is not None and source.load_rounds() <= first:
        for path in (source.last_path, source.metrics_path, source.inputs_path):
            if path.is_file():
                shutil.copy2(path, copy.path / path.name)
        if source.clients_path.is_dir():
            shutil.copytree(source.clients_path, copy.clients_path)
    copy.create(config)


def _play(
    player: Engine, collector: Collector, missing: Sequence[int], store: _Store, say: Say
) -> None:
    """Measure before the round is played, since that moves the weights; keep it afterwards."""
    local = collector.request.local
    for number in range(player.state.rounds, missing[-1] + 1):
        board = player.board
        before, measured = board.weights.clone(), None
        if number in missing:
            active = engine.draw_clients(player.config, player.config.clients, number)
            measured = collector.checkpoint(
                before, active, round_number=number, buffers=board.buffers, say=say
            )
        ends = number == missing[-1]
        if not ends or local:
            say(f"round {number + 1} of {missing[-1] + local}: local training")
            record = player.round(number)
        if measured is not None:
            if local:
                measured = _with_local_models(player, collector, measured, before, say)
            store.put(replace(measured, origin=machine.report()))
        if not ends:
            player.keep(record)


def _with_local_models(
    player: Engine, collector: Collector, measured: Checkpoint, before: Tensor, say: Say
) -> Checkpoint:
    """Compare what the clients of the round just played have learned."""
    cosines, kept = Cosines(), []
    for row, client in enumerate(measured.clients):
        say(f"round {measured.round}: features of the model of client {client}")
        cosines.add({"update": player.board.results[row] - before})
        collector.load(player.board.results[row], player.board.buffer_results[row])
        kept.append(features(collector.flat.model, collector.samples))
    if collector.request.batch:
        lr = player.config.learning_rate(measured.round)
        results = list(player.board.results[: len(measured.clients)])
        measured = collector.with_updates(measured, before, results, lr)
    return replace(measured, cosine=cosines.mean(), similarity=similarity(kept))
