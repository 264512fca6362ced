"""Clients on Flower's SuperNodes: one message to each node and round, results in order of client.

Messages are pushed and pulled in a loop of our own: the stock one sleeps three seconds between
looks, and sums in order of arrival.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any, get_type_hints

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from specgrad_fl.building import Blueprint
from specgrad_fl.client import ClientResult
from specgrad_fl.errors import RunError, printable
from specgrad_fl.executor import Executor
from specgrad_fl.flower import wire
from specgrad_fl.flower.place import fingerprint
from specgrad_fl.partition import split
from specgrad_fl.storage import ClientRounds
from specgrad_fl.vectors import FlatModel, TensorShapes

# between looks for answers, and for nodes that have gone; and what a message lives longer
PULL_SECONDS, PRESENCE_SECONDS, SPARE_SECONDS = 0.1, 5.0, 60.0
# for a node to say which clients it has: its process imports torch, perhaps on a busy machine
MEET_SECONDS = 120.0
ATTEMPTS = 3
# more than any client takes, in seconds and in MiB; and the largest float32, for losses
MOST, LARGEST = 1e9, 3.4e38


@dataclass
class RoundAnswers:
    """Answers of a round's clients: the checked ones, and the reasons for the others.

    not_finite: clients that answered with a loss or weights that are not finite
    """

    number: int
    lr: float
    accepted: dict[int, tuple[ClientResult, dict[str, Tensor]]] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    not_finite: set[int] = field(default_factory=set)
    attempts: int = 0
    bytes: dict[str, int] = field(default_factory=lambda: {"down": 0, "up": 0})


class FlowerExecutor(Executor):
    """Trains on nodes, scores here. A client that fails is left out of the round."""

    def __init__(
        self,
        grid: Grid,
        run: str,
        blueprint: Blueprint,
        arrays: dict[str, Tensor],
        flat: FlatModel,
        layout: TensorShapes,
        states: ClientRounds,
    ) -> None:
        super().__init__(blueprint, arrays, flat, layout)
        self._grid, self._run, self._states = grid, run, states
        self._config, self._blueprint = blueprint.config, asdict(blueprint)
        self._sizes: list[int] = arrays["sizes"].tolist()
        samples = [arrays[name].numpy() for name in ("train_x", "train_y")]
        clients = split(arrays)
        self._known = [fingerprint(*(part[held] for part in samples)) for held in clients]
        # the node of each client, nodes that said which ones they have, and why some take no part
        self._hosts: dict[int, int] = {}
        self._met: set[int] = set()
        self._troubles: dict[int, str] = {}
        self._memory: dict[int, float] = {}
        self._remarks: dict[str, Any] = {}

    def start(self) -> None:
        """Wait for the nodes of all clients; the run ends here if too few of them join."""
        self._wait_for(range(len(self._sizes)))
        if len(self._hosts) < self._config.min_clients:
            raise RunError(
                f"{len(self._hosts)} of {len(self._sizes)} clients are on a connected node after "
                f"{self._config.join_timeout:g} s, and min_clients is {self._config.min_clients}; "
                + "; ".join(["start the SuperNodes with the data of the others", *self._absent()])
            )

    def _absent(self) -> list[str]:
        """Why connected nodes do not take part."""
        return [f"node {node}: {why}" for node, why in sorted(self._troubles.items())]

    def _wait_for(self, clients: Iterable[int]) -> None:
        """Wait for the nodes of clients, at most ``join_timeout`` seconds."""
        deadline = time.monotonic() + self._config.join_timeout
        wanted = set(clients)
        while True:
            self._meet(max(deadline - time.monotonic(), PULL_SECONDS))
            if wanted <= set(self._hosts) or time.monotonic() >= deadline or self._all_refuse():
                return
            time.sleep(PULL_SECONDS)

    def _all_refuse(self) -> bool:
        """Find out if there is a mistake that all nodes share; one node alone decides nothing."""
        return len(self._met) > 1 and self._met <= set(self._troubles)

    def _meet(self, seconds: float) -> None:
        """Ask new nodes for their clients, and forget nodes that have gone.

        A node that does not answer soon is asked again next time: it may be starting, or dead and
        not yet missed by the SuperLink.
        """
        present = set(self._grid.get_node_ids())
        self._met &= present
        self._hosts = {c: node for c, node in self._hosts.items() if node in present}
        self._troubles = {n: why for n, why in self._troubles.items() if n in present}
        for node, answer in sorted(self._asked(present - self._met, seconds).items()):
            self._troubles.pop(node, None)
            if answer.has_error():
                self._troubles[node] = printable(f"an error: {answer.error.reason}")
                continue
            self._met.add(node)
            try:
                self._welcome(node, answer)
            except wire.WireError as error:
                self._troubles[node] = str(error)
            except Exception as error:  # whatever it sent concerns this node alone
                self._troubles[node] = printable(
                    f"it does not introduce itself as a node of this trainer ({error!r})"
                )

    def _asked(self, nodes: set[int], seconds: float) -> dict[int, Message]:
        """Ask nodes for their clients."""
        question = {node: wire.pack({"blueprint": self._blueprint}) for node in nodes}
        deadline = time.monotonic() + min(seconds, MEET_SECONDS)
        return self._exchange(question, "query", deadline) if nodes else {}

    def _welcome(self, node: int, answer: Message) -> None:
        """Take over the clients of a node whose software and data are those of this run."""
        try:
            facts, _ = wire.unpack(answer.content)
        except wire.WireError as error:
            raise wire.WireError(f"it sent {error}") from error
        if "refusal" in facts:
            raise wire.WireError(str(facts["refusal"]))
        version = metadata.version("specgrad")
        if facts.get("specgrad") != version:
            raise wire.WireError(
                f"it runs specgrad {facts.get('specgrad')} and the server {version}; install the "
                "same version on both"
            )
        found = {int(name): mark for name, mark in dict(facts["clients"]).items()}
        clients = sorted(set(found) & set(range(len(self._known))))
        for client in clients:
            if found[client] != self._known[client]:
                raise wire.WireError(
                    f"its data of client {client} are not those of this run; give it the same data "
                    "set, or files written by `specgrad-fl flower shards` for this experiment"
                )
            other = self._hosts.get(client, node)
            again = self._asked({other} - {node}, MEET_SECONDS)
            if any(not answer.has_error() for answer in again.values()):
                raise wire.WireError(
                    f"it has client {client}, and so has node {other}; give every SuperNode its "
                    "own partition-id or data folder"
                )
        self._hosts |= dict.fromkeys(clients, node)

    def train(self, round_number: int, lr: float, clients: list[int]) -> list[ClientResult]:
        this = RoundAnswers(round_number, lr)
        while len(this.accepted) < min(self._config.min_clients, len(clients)):
            missing = [client for client in clients if client not in this.accepted]
            if this.attempts == ATTEMPTS:
                why = [f"client {client}: {why}" for client, why in sorted(this.reasons.items())]
                told = "; ".join([*why, *self._absent()])
                raise RunError(
                    f"round {round_number + 1}: {len(this.accepted)} of {len(clients)} clients "
                    f"answered in {ATTEMPTS} attempts, and min_clients is "
                    f"{self._config.min_clients}; the checkpoint before this round is kept, so "
                    f"mend the nodes and resume ({told})"
                )
            if this.attempts:
                self._wait_for(missing)
            self._attempt(this, missing)
            this.attempts += 1
            if this.not_finite == set(clients):
                return []  # the run has diverged, and would again
        taken = sorted(this.accepted)
        for row, client in enumerate(taken):
            _, vectors = this.accepted[client]
            self.board.results[row].copy_(vectors["weights"])
            if "buffers" in vectors:
                self.board.buffer_results[row].copy_(vectors["buffers"])
        self._remarks = {"wire_bytes": this.bytes, "repeats": this.attempts - 1}
        if self._troubles:
            self._remarks["refused"] = self._absent()
        left_out = [client for client in clients if client not in this.accepted]
        if left_out:
            reasons = [f"client {c}: {this.reasons[c]}" for c in left_out]
            self._remarks |= {"left_out": left_out, "reasons": reasons}
        return [this.accepted[client][0] for client in taken]

    def _attempt(self, this: RoundAnswers, clients: list[int]) -> None:
        """Ask for clients, and sort what comes."""
        self._meet(self._config.client_timeout)
        deadline = time.monotonic() + self._config.client_timeout
        by_node: dict[int, list[int]] = {}
        for client in clients:
            this.reasons[client] = "no connected node has its data"
            if client in self._hosts:
                this.reasons[client] = f"no answer within {self._config.client_timeout:g} s"
                by_node.setdefault(self._hosts[client], []).append(client)
        arrays = {name: vector.numpy() for name, vector in wire.outgoing(self.board).items()}
        orders = {n: wire.pack(self._order(this, asked), arrays) for n, asked in by_node.items()}
        this.bytes["down"] += sum(map(wire.size, orders.values()))
        for node, answer in self._exchange(orders, "train", deadline).items():
            self._sort(this, node, by_node[node], answer)

    def _order(self, this: RoundAnswers, clients: list[int]) -> dict[str, Any]:
        return {
            "run": self._run,
            "blueprint": self._blueprint,
            "sizes": self._sizes,
            "round": this.number,
            "lr": this.lr,
            "clients": clients,
            "newest": {str(c): self._states.newest.get(c, 0) for c in clients},
            "stored": {str(c): self._states.stored.get(c, 0) for c in clients},
            "previous": {str(c): self._states.previous.get(c, 0) for c in clients},
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
        asked = dict(zip(nodes, messages, strict=True))
        waiting = {str(name): node for name, node in zip(sent, nodes, strict=True) if name}
        answers: dict[int, Message] = {}
        looked = time.monotonic()
        while True:
            for name, node in list(waiting.items()):
                if answer := self._answer(name, asked[node]):
                    answers[waiting.pop(name)] = answer
            if not waiting or time.monotonic() >= deadline:
                return answers
            if time.monotonic() - looked > PRESENCE_SECONDS:
                looked = time.monotonic()
                present = set(self._grid.get_node_ids())
                waiting = {name: node for name, node in waiting.items() if node in present}
            time.sleep(PULL_SECONDS)

    def _answer(self, name: str, question: Message) -> Message | None:
        """Pull the answer to one message, if it is there.

        One at a time: an answer that cannot be unpacked takes those with it that are pulled along,
        and one that says of itself whom it answers may name the message to another node.
        """
        try:
            found = self._grid.pull_messages([name])
            return next((r for r in found if r.metadata.reply_to_message_id == name), None)
        except Exception as error:
            self._grid.get_node_ids()  # which fails where the SuperLink does, and not the node
            why = printable(f"an answer that cannot be unpacked: {error!r}")
            return Message(Error(code=0, reason=why), reply_to=question)

    def _sort(self, this: RoundAnswers, node: int, asked: list[int], answer: Message) -> None:
        """Check a node's answer, client by client."""
        try:
            if answer.has_error():
                raise wire.WireError(f"an error: {answer.error.reason}")
            this.bytes["up"] += wire.size(answer.content)
            facts, arrays = wire.unpack(answer.content)
            if "refusal" in facts:
                raise wire.WireError(f"a refusal: {facts['refusal']}")
            if facts.get("round") != this.number:
                raise wire.WireError(f"an answer to round {facts.get('round')}")
            reports = dict(facts["reports"])
        except Exception as error:  # whatever it sent concerns the clients of this node alone
            this.reasons.update(dict.fromkeys(asked, f"its node sent {_told(error)}"))
            return
        for client in asked:
            try:
                report = _checked(reports.get(str(client)), client, this.lr, self._steps(client))
                this.accepted[client] = report, self._vectors(client, arrays)
            except Exception as error:
                this.reasons[client] = _told(error)
                if isinstance(error, wire.NotFinite):
                    this.not_finite.add(client)
            else:
                del this.reasons[client]
                self._memory[node] = report.peak_mib

    def _steps(self, client: int) -> range:
        """Numbers of steps that a client can have taken; mixed precision may skip some."""
        fewest, most = self._config.fewest_and_most_epochs
        batches = math.ceil(self._sizes[client] / self._config.batch_size)
        return range(1 if self._config.amp == "fp16" else fewest * batches, most * batches + 1)

    def _vectors(self, client: int, arrays: wire.Arrays) -> dict[str, Tensor]:
        """Check the vectors of a client against those that it should have sent."""
        board, method = self.board, self._runner.method
        like = dict.fromkeys(method.client_vectors, board.weights)
        expected = wire.returned(method, board.weights, board.buffers, like)
        return {n: wire.taken(arrays, f"{client}/{n}", v, n) for n, v in expected.items()}

    def remarks(self) -> dict[str, Any]:
        return self._remarks

    def memory(self) -> list[float]:
        return list(self._memory.values())


def _told(error: Exception) -> str:
    """Describe what was wrong with an answer."""
    if isinstance(error, wire.WireError):
        return str(error)
    return printable(f"an answer that cannot be read: {error!r}")


def _checked(told: Any, client: int, lr: float, steps: range) -> ClientResult:
    """Check that a client's report can be true: servers divide by some of its numbers."""
    if isinstance(told, dict) and "error" in told:
        raise wire.WireError(told["error"])
    kinds = get_type_hints(ClientResult)
    if not isinstance(told, dict) or set(told) != set(kinds):
        raise wire.WireError("its node sent no report of it")
    report = ClientResult(**told)
    plausible = (
        all(type(told[n]) in ((int, float) if k is float else (k,)) for n, k in kinds.items())
        and report.client == client
        and report.steps in steps
        and math.isclose(report.lr_sum, report.steps * lr)
        and 0 <= report.filter_seconds <= report.seconds
        and 0 < report.seconds < MOST
        and 0 <= report.peak_mib < MOST
        and (-LARGEST <= report.loss <= LARGEST or not report.finite)
    )
    if not plausible:
        raise wire.WireError("its report is of another client, or impossible")
    if not report.finite:
        raise wire.NotFinite("its loss or weights are no longer finite; choose a smaller lr")
    return report
