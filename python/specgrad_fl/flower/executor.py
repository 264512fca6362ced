"""Clients on Flower's SuperNodes: one message to each node and round, results in order of client.

Messages are pushed and pulled in a loop of our own: the stock one sleeps three seconds between
looks, and sums in order of arrival.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from specgrad_fl import prepare
from specgrad_fl.client import Report
from specgrad_fl.errors import RunError
from specgrad_fl.executor import InProcess
from specgrad_fl.flower import wire
from specgrad_fl.flower.place import fingerprint
from specgrad_fl.prepare import Blueprint
from specgrad_fl.storage import ClientRounds
from specgrad_fl.vectors import FlatModel, Layout

# between looks for answers, and for nodes that have gone
PULL_SECONDS, PRESENCE_SECONDS = 0.1, 5.0
SPARE_SECONDS = 60.0
# for a node to say which clients it has: its process imports torch, perhaps on a busy machine
MEET_SECONDS = 120.0
ATTEMPTS = 3


@dataclass(frozen=True)
class Result:
    """What a client sent, checked."""

    report: Report
    weights: Tensor
    buffers: Tensor


@dataclass(frozen=True)
class Known:
    """What the server knows of a client's data."""

    size: int
    fingerprint: str


class FlowerExecutor(InProcess):
    """Trains on nodes, scores here. A client that fails is left out of the round."""

    def __init__(
        self,
        grid: Grid,
        run: str,
        blueprint: Blueprint,
        arrays: dict[str, Tensor],
        flat: FlatModel,
        layout: Layout,
        states: ClientRounds,
    ) -> None:
        super().__init__(blueprint, arrays, flat, layout)
        self._grid = grid
        self._run = run
        self._states = states
        self._config = blueprint.config
        self._blueprint = blueprint.as_dict()
        self._method = self._runner.method
        self._sizes: list[int] = arrays["sizes"].tolist()
        self._known = [
            Known(len(held), _fingerprint(arrays, held)) for held in prepare.split_clients(arrays)
        ]
        self._hosts: dict[int, int] = {}
        self._met: set[int] = set()
        self._refusals: dict[int, str] = {}
        self._errors: dict[int, str] = {}
        self._memory: dict[int, float] = {}
        self._remarks: dict[str, Any] = {}
        self._bytes = {"down": 0, "up": 0}

    def start(self) -> None:
        """Wait for the nodes of all clients; a node that refuses or is refused ends the run."""
        self._wait_for(range(len(self._sizes)), until_refusal=True)
        if self._refusals:
            raise RunError("; ".join(self._troubles()))
        if len(self._hosts) < self._config.min_clients:
            raise RunError(
                f"{len(self._hosts)} of {len(self._sizes)} clients are on a connected node after "
                f"{self._config.join_timeout:g} s, and min_clients is {self._config.min_clients}; "
                + "; ".join(["start the SuperNodes with the data of the others", *self._troubles()])
            )

    def _troubles(self) -> list[str]:
        """Why connected nodes do not take part."""
        told = sorted((self._errors | self._refusals).items())
        return [f"node {node}: {why}" for node, why in told]

    def _wait_for(self, clients: Iterable[int], until_refusal: bool = False) -> None:
        """Wait for the nodes of clients, at most ``join_timeout`` seconds."""
        deadline = time.monotonic() + self._config.join_timeout
        wanted = set(clients)
        while True:
            self._meet(max(deadline - time.monotonic(), PULL_SECONDS))
            if wanted <= set(self._hosts) or time.monotonic() >= deadline:
                return
            if self._refusals and until_refusal:
                return
            time.sleep(PULL_SECONDS)

    def _meet(self, seconds: float) -> None:
        """Ask new nodes for their clients, and forget nodes that have gone.

        A node that does not answer soon is asked again next time: it may be starting, or dead and
        not yet missed by the SuperLink.
        """
        present = set(self._grid.get_node_ids())
        self._met &= present
        self._hosts = {c: node for c, node in self._hosts.items() if node in present}
        for told in (self._refusals, self._errors):
            for node in set(told) - present:
                del told[node]
        for node, facts in sorted(self._asked(present - self._met, seconds).items()):
            self._met.add(node)
            self._errors.pop(node, None)
            try:
                self._welcome(node, facts)
            except wire.WireError as error:
                self._refusals[node] = str(error)
            except (KeyError, TypeError, ValueError, AttributeError):
                self._refusals[node] = "it does not introduce itself as a node of this trainer"

    def _asked(self, nodes: set[int], seconds: float) -> dict[int, dict[str, Any]]:
        """What nodes say of themselves; those where the question failed are asked again later."""
        question = {node: wire.pack({"blueprint": self._blueprint}) for node in nodes}
        deadline = time.monotonic() + min(seconds, MEET_SECONDS)
        answers = self._exchange(question, "query", deadline) if nodes else {}
        told = {}
        for node, answer in answers.items():
            if answer.has_error():
                self._errors[node] = f"an error: {answer.error.reason}"
                continue
            try:
                told[node], _ = wire.unpack(answer.content)
            except wire.WireError as error:
                told[node] = {"refusal": f"it sent {error}"}
        return told

    def _welcome(self, node: int, facts: dict[str, Any]) -> None:
        """Take over the clients of a node whose software and data are those of this run."""
        if "refusal" in facts:
            raise wire.WireError(str(facts["refusal"]))
        version = metadata.version("specgrad")
        if facts.get("protocol") != wire.PROTOCOL or facts.get("specgrad") != version:
            raise wire.WireError(
                f"it runs specgrad {facts.get('specgrad')} and the server {version}; install the "
                "same version on both"
            )
        found = {int(name): about for name, about in dict(facts["clients"]).items()}
        for client in sorted(set(found) & set(range(len(self._known)))):
            if Known(found[client]["size"], found[client]["fingerprint"]) != self._known[client]:
                raise wire.WireError(
                    f"its data of client {client} are not those of this run; give it the same data "
                    "set, or files written by `specgrad-fl flower shards` for this experiment"
                )
            other = self._hosts.get(client, node)
            if other != node and self._asked({other}, MEET_SECONDS):
                raise wire.WireError(
                    f"it has client {client}, and so has node {other}; give every SuperNode its "
                    "own partition-id or data folder"
                )
            self._hosts[client] = node

    def train(self, round_number: int, lr: float, clients: list[int]) -> list[Report]:
        accepted: dict[int, Result] = {}
        reasons: dict[int, str] = {}
        self._bytes = {"down": 0, "up": 0}
        attempts = 0
        while len(accepted) < min(self._config.min_clients, len(clients)):
            if attempts == ATTEMPTS:
                raise self._too_few_answers(round_number, len(accepted), reasons)
            missing = [client for client in clients if client not in accepted]
            if attempts:
                self._wait_for(missing)
            self._attempt(round_number, lr, missing, accepted, reasons)
            attempts += 1
        taken = sorted(accepted)
        for row, client in enumerate(taken):
            self.board.results[row].copy_(accepted[client].weights)
            self.board.buffer_results[row].copy_(accepted[client].buffers)
        self._remarks = {"wire_bytes": dict(self._bytes), "repeats": attempts - 1}
        left_out = [client for client in clients if client not in accepted]
        if left_out:
            told_all = [f"client {c}: {reasons[c]}" for c in left_out]
            self._remarks |= {"left_out": left_out, "reasons": told_all}
        return [accepted[client].report for client in taken]

    def _too_few_answers(self, round_number: int, count: int, reasons: dict[int, str]) -> RunError:
        told = "; ".join(f"client {client}: {why}" for client, why in sorted(reasons.items()))
        return RunError(
            f"round {round_number + 1}: {count} of {count + len(reasons)} clients answered in "
            f"{ATTEMPTS} attempts, and min_clients is {self._config.min_clients}; the checkpoint "
            f"before this round is kept, so mend the nodes and resume ({told})"
        )

    def _attempt(
        self,
        round_number: int,
        lr: float,
        clients: list[int],
        accepted: dict[int, Result],
        reasons: dict[int, str],
    ) -> None:
        """Ask for clients; what can be used goes to ``accepted``, why not to ``reasons``."""
        self._meet(self._config.client_timeout)
        deadline = time.monotonic() + self._config.client_timeout
        by_node: dict[int, list[int]] = {}
        troubles = self._troubles()
        for client in clients:
            reasons[client] = "; ".join(["no connected node has its data", *troubles])
            if client in self._hosts:
                reasons[client] = f"no answer within {self._config.client_timeout:g} s"
                by_node.setdefault(self._hosts[client], []).append(client)
        arrays = self._outgoing()
        orders = {
            node: wire.pack(self._order(round_number, lr, asked), arrays)
            for node, asked in by_node.items()
        }
        self._bytes["down"] += sum(map(wire.size, orders.values()))
        answers = self._exchange(orders, "train", deadline)
        for node, answer in answers.items():
            self._sort(round_number, lr, by_node[node], answer, accepted, reasons)

    def _outgoing(self) -> wire.Arrays:
        board = self.board
        vectors = {"weights": board.weights, "buffers": board.buffers}
        vectors |= {f"sent-{name}": vector for name, vector in board.sent.items()}
        return {name: vector.numpy() for name, vector in wire.present(vectors).items()}

    def _order(self, round_number: int, lr: float, clients: list[int]) -> dict[str, Any]:
        return {
            "run": self._run,
            "blueprint": self._blueprint,
            "sizes": self._sizes,
            "round": round_number,
            "lr": lr,
            "clients": clients,
            "newest": {str(c): self._states.newest(c) for c in clients},
            "stored": {str(c): self._states.stored(c) for c in clients},
        }

    def _exchange(
        self, contents: Mapping[int, RecordDict], kind: str, deadline: float
    ) -> dict[int, Message]:
        """Send each node its message; the answers that come before the deadline, by node."""
        nodes = sorted(contents)
        # Flower drops a message after its time, with an error that would hide our own time-out
        lifetime = max(deadline - time.monotonic(), 0) + SPARE_SECONDS
        messages = [Message(contents[node], node, kind, ttl=lifetime) for node in nodes]
        sent = self._grid.push_messages(messages)
        waiting = {str(name): node for name, node in zip(sent, nodes, strict=True) if name}
        answers: dict[int, Message] = {}
        looked = time.monotonic()
        while waiting:
            for reply in self._grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    answers[node] = reply
            now = time.monotonic()
            if not waiting or now >= deadline:
                break
            if now - looked > PRESENCE_SECONDS:
                looked = now
                present = set(self._grid.get_node_ids())
                waiting = {name: node for name, node in waiting.items() if node in present}
            time.sleep(PULL_SECONDS)
        return answers

    def _sort(
        self,
        round_number: int,
        lr: float,
        asked: Iterable[int],
        answer: Message,
        accepted: dict[int, Result],
        reasons: dict[int, str],
    ) -> None:
        """Check a node's answer, client by client."""
        try:
            if answer.has_error():
                raise wire.WireError(f"an error: {answer.error.reason}")
            content = answer.content
            self._bytes["up"] += wire.size(content)
            facts, arrays = wire.unpack(content)
            if "refusal" in facts:
                raise wire.WireError(f"a refusal: {facts['refusal']}")
            if facts.get("round") != round_number:
                raise wire.WireError(f"an answer to round {facts.get('round')}")
            reports = dict(facts["reports"])
        except (wire.WireError, KeyError, TypeError, ValueError) as error:
            reasons.update(dict.fromkeys(asked, f"its node sent {error}"))
            return
        for client in asked:
            try:
                accepted[client] = self._result(client, lr, reports.get(str(client)), arrays)
            except wire.WireError as error:
                reasons[client] = str(error)
            else:
                reasons.pop(client, None)
                self._memory[self._hosts[client]] = accepted[client].report.peak_mib

    def _result(self, client: int, lr: float, told: Any, arrays: wire.Arrays) -> Result:
        """A client's part of an answer, or a :class:`WireError` that says what is wrong with it."""
        if isinstance(told, dict) and "error" in told:
            raise wire.WireError(str(told["error"]))
        try:
            report = Report(**told)
            usable = _plausible(report, client, lr)
        except TypeError as error:
            raise wire.WireError("its node sent no report of it") from error
        if not usable:
            raise wire.WireError("its report is of another client, or impossible")
        if not report.finite:
            raise wire.WireError("its loss or weights are no longer finite; choose a smaller lr")
        vectors = {
            name: wire.check_array(arrays, f"{client}/{name}", like, name)
            for name, like in self._expected().items()
        }
        buffers = vectors.get("buffers", self.board.buffers.numpy())  # empty where not sent
        return Result(report, torch.from_numpy(vectors["weights"]), torch.from_numpy(buffers))

    def _expected(self) -> dict[str, Any]:
        """Every array that a client sends, and one of its form."""
        weights, buffers = self.board.weights.numpy(), self.board.buffers.numpy()
        states = self._method.client_vectors[: self._method.up - 1]
        sent = {"weights": weights, "buffers": buffers} | {f"state-{n}": weights for n in states}
        return wire.present(sent)

    def remarks(self) -> dict[str, Any]:
        return self._remarks

    def memory(self) -> list[float]:
        return list(self._memory.values())


def _plausible(report: Report, client: int, lr: float) -> bool:
    """Whether a report can be true: servers divide by some of its numbers."""
    numbers = (report.seconds, report.filter_seconds, report.peak_mib, report.lr_sum)
    return (
        report.client == client
        and isinstance(report.steps, int)
        and report.steps > 0
        and math.isclose(report.lr_sum, report.steps * lr)
        and all(math.isfinite(number) for number in numbers)
        and (math.isfinite(report.loss) or not report.finite)
        and 0 <= report.filter_seconds <= report.seconds
        and report.seconds > 0
    )


def _fingerprint(arrays: dict[str, Tensor], held: Tensor) -> str:
    return fingerprint(arrays["train_x"][held].numpy(), arrays["train_y"][held].numpy())
