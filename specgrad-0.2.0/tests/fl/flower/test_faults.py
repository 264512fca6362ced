"""Faults of nodes, and the server's response."""

from __future__ import annotations

import numpy as np
import pytest
import specgrad_data
import torch
from federations import result_of
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from specgrad_fl import building, models, samples, storage
from specgrad_fl.building import Blueprint
from specgrad_fl.engine import draw_clients
from specgrad_fl.errors import Diverged, RunError
from specgrad_fl.flower import place, wire
from specgrad_fl.methods import weighted_sum
from specgrad_fl.models import Inputs
from torch import nn


def images():
    kind, _ = samples.stored(specgrad_data.load("digits"), augment=True, channels_last=True)
    return kind


def changed(reply: Message, change) -> Message:
    """The answer with its facts and arrays passed through ``change``."""
    facts, arrays = wire.unpack(reply.content)
    arrays = {name: array.copy() for name, array in arrays.items()}
    change(facts, arrays)
    reply.content = wire.pack(facts, arrays)
    return reply


def linear(num_classes, in_channels, image_size):
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * image_size**2, num_classes))


def in_round(made, node, number, change):
    """Tamper with one node's answer to one round."""

    def tamper(answering, reply):
        if answering != node or reply.metadata.message_type != "train" or reply.has_error():
            return reply
        facts, _ = wire.unpack(reply.content)
        return change(reply) if facts["round"] == number else reply

    made.grid.tamper = tamper


def weights(arrays, client):
    return arrays[f"{client}/weights"]


def spoil_with(value):
    def spoil(facts, arrays):
        for client in facts["reports"]:
            weights(arrays, client)[7] = value

    return spoil


def shorten(facts, arrays):
    for client in facts["reports"]:
        arrays[f"{client}/weights"] = weights(arrays, client)[:-1]


def widen(facts, arrays):
    for client in facts["reports"]:
        arrays[f"{client}/weights"] = weights(arrays, client).astype(np.float64)


def drop(facts, arrays):
    arrays.clear()


def unreported(facts, arrays):
    facts["reports"] = {}


def report_with(**changes):
    def change(facts, arrays):
        for report in facts["reports"].values():
            report.update(changes)

    return lambda reply: changed(reply, change)


def another_round(facts, arrays):
    facts["round"] = 17


def foreign(reply):
    reply.content = RecordDict({"model": ArrayRecord([np.ones(3)]), "metrics": MetricRecord({})})
    return reply


def garbage(reply):
    reply.content = RecordDict(
        {wire.ARRAYS: ArrayRecord(), wire.FACTS: ConfigRecord({"json": b"not compressed"})}
    )
    return reply


class Unpackable:
    """Contents that Flower hands out only with an exception, such as an unknown kind of record."""

    @property
    def metadata(self):
        raise KeyError("Invented")


def for_another(reply):
    """An answer that says of itself that it answers the order of another node."""
    name = reply.metadata.reply_to_message_id
    other = f"message {int(name.removeprefix('message ')) + 1}"
    reply.metadata.__dict__["_reply_to_message_id"] = other
    return reply


FAULTS = {
    "unpackable": (lambda reply: Unpackable(), "an error: an answer that cannot be unpacked"),
    "for another": (for_another, "no answer within 1 s"),
    "nan": (lambda reply: changed(reply, spoil_with(np.nan)), "its weights are not finite"),
    "infinity": (lambda reply: changed(reply, spoil_with(np.inf)), "its weights are not finite"),
    "shape": (lambda reply: changed(reply, shorten), "its weights are float32 of shape"),
    "dtype": (lambda reply: changed(reply, widen), "its weights are float64 of shape"),
    "no arrays": (lambda reply: changed(reply, drop), "it sent no weights"),
    "no report": (lambda reply: changed(reply, unreported), "no report of it"),
    "no step": (report_with(steps=0, lr_sum=0.0), "impossible"),
    "huge step": (report_with(lr_sum=1e-30), "impossible"),
    "no time": (report_with(seconds=0.0, filter_seconds=0.0), "impossible"),
    "no number": (report_with(loss=float("nan")), "impossible"),
    "word": (report_with(steps="many"), "impossible"),
    "another client": (report_with(client=77), "of another client"),
    "diverged": (report_with(finite=False), "choose a smaller lr"),
    "old answer": (lambda reply: changed(reply, another_round), "an answer to round 17"),
    "foreign": (foreign, "a record of another application"),
    "garbage": (garbage, "facts cannot be read"),
    "silence": (lambda reply: None, "no answer within 1 s"),
}


def test_a_bad_answer_is_left_out_and_named(federation):
    """One fault in each round; the mean is that of the others, with their shares renormalised."""
    made = federation(nodes=6, rounds=len(FAULTS))
    config = made.run.config()
    drawn = [draw_clients(config, 6, number) for number in range(config.rounds)]
    faults = list(FAULTS)
    sent = {}

    def tamper(node, reply):
        if reply.metadata.message_type != "train":
            return reply
        facts, arrays = wire.unpack(reply.content)
        number, client = facts["round"], node - 100
        if client == drawn[number][1]:
            return FAULTS[faults[number]][0](reply)
        sent[number, client] = torch.from_numpy(weights(arrays, client))
        return reply

    model = building.build_model(Blueprint(config, images(), Inputs(10, 1, 8)))

    def check(record, config):
        number = record["round"] - 1
        rest, bad = [drawn[number][0], drawn[number][2]], drawn[number][1]
        assert (record["clients"], record["left_out"]) == (rest, [bad]), faults[number]
        assert record["reasons"][0].startswith(f"client {bad}: ")
        assert FAULTS[faults[number]][1] in record["reasons"][0]
        rows = torch.stack([sent[number, client] for client in rest])
        mean = weighted_sum(rows, torch.tensor([0.5, 0.5], dtype=torch.float64))
        stored, _ = storage.load_tensors(made.run.last_path)
        for name, value in model.named(mean).items():
            assert torch.equal(stored[f"model.{name}"], value), faults[number]

    made.grid.tamper = tamper
    assert len(made.play(check).records()) == len(FAULTS)


def test_a_round_below_the_minimum_is_repeated(federation):
    settings = {"nodes": 6, "rounds": 2, "min_clients": 3}
    undisturbed = federation(**settings).play()
    made = federation("again", **settings)
    bad = undisturbed.records()[1]["clients"][0]
    failures = []

    def once(reply):
        failures.append(reply)
        return None if len(failures) == 1 else reply

    in_round(made, 100 + bad, 1, once)
    run = made.play()
    assert run.records()[1]["repeats"] == 1
    assert "left_out" not in run.records()[1]
    assert result_of(run) == result_of(undisturbed)


def test_nothing_is_averaged_when_nobody_answers(federation):
    made = federation(nodes=2, rounds=2, min_clients=1)

    def silence(node, reply):
        if reply.metadata.message_type != "train" or reply.has_error():
            return reply
        facts, _ = wire.unpack(reply.content)
        return None if facts["round"] == 1 else reply

    made.grid.tamper = silence
    with pytest.raises(RunError, match=r"round 2: 0 of 3 clients answered in 3 attempts"):
        made.play()
    assert len(made.run.records()) == 1
    made.grid.tamper = lambda node, reply: reply
    assert len(made.play().records()) == 2


def test_a_poisoned_update_is_left_out_by_the_guard(federation, monkeypatch):
    """Finite numbers in a flawless message, from one of ten clients, in every round."""
    settings = {"nodes": 5, "clients": 10, "active": 10, "rounds": 3, "model": "linear"}
    monkeypatch.setitem(models.MODELS, "linear", linear)
    honest = federation("honest", **settings).play().records()[-1]["test_accuracy"]
    poisons = {1: 1e2, 2: 1e38, 3: np.float32(-3.4e38)}
    made = federation(**settings)

    def poison(node, reply):
        def change(facts, arrays):
            if "8" in facts.get("reports", ()):
                weights(arrays, 8).fill(poisons[facts["round"] + 1])

        return changed(reply, change)

    made.grid.tamper = poison
    found = made.play().records()
    for record in found:
        assert (record["left_out"], len(record["clients"])) == ([8], 9)
        assert "times as long as the round's median" in record["reasons"][0]
    assert abs(found[-1]["test_accuracy"] - honest) < 0.02


def test_a_run_whose_clients_all_diverge_has_diverged(federation):
    """As in one process, and asked once: clients would answer the same again."""
    made = federation(nodes=3, rounds=2)

    def diverge(node, reply):
        if reply.metadata.message_type != "train" or wire.unpack(reply.content)[0]["round"] == 0:
            return reply
        return report_with(finite=False, loss=float("nan"))(reply)

    made.grid.tamper = diverge
    with pytest.raises(Diverged, match=r"round 2: loss or weights of all 3 clients .* round 1 is"):
        made.play()
    assert len([kind for _, kind in made.grid.log if kind == "train"]) <= 6


def test_an_exception_on_a_node_is_told(federation):
    made = federation(nodes=6, rounds=1, active=6, min_clients=6)
    place.path_of(made.nodes[103] / "data", 3).write_bytes(b"damaged")
    with pytest.raises(RunError, match=r"node 103: the data of client 3 cannot be read"):
        made.play()


def test_an_error_of_flower_is_told_when_the_wait_is_over(federation):
    """Such as a node without this package: it may be mended meanwhile, so it is asked again."""
    made = federation(nodes=6, rounds=1, active=6, min_clients=6)
    broken = Error(code=0, reason="No module named 'specgrad_fl'")

    def fail(node, reply):
        if node == 104:
            reply.__dict__["_content"], reply.__dict__["_error"] = None, broken
        return reply

    made.grid.tamper = fail
    with pytest.raises(RunError, match=r"5 of 6 clients .*; node 104: an error: No module named"):
        made.play()
    assert made.grid.log.count((104, "query")) > 1


def test_data_of_another_run_are_refused(federation):
    made = federation(nodes=6, rounds=1, active=6, min_clients=6)
    folder = made.nodes[102] / "data"
    arrays = place.NodeData(folder, None).samples(2)
    place.write(folder, 2, arrays["train_x"][::-1], arrays["train_y"])
    with pytest.raises(RunError, match="node 102: its data of client 2 are not those of this run"):
        made.play()


def test_another_version_is_refused(federation, monkeypatch):
    made = federation(rounds=1)
    tell = wire.pack
    monkeypatch.setattr(
        wire,
        "pack",
        lambda facts, *a: tell({**facts, "specgrad": "9.9"} if "specgrad" in facts else facts, *a),
    )
    with pytest.raises(
        RunError, match=r"node 100: it runs specgrad 9.9 and the server \S+; install the same"
    ):
        made.play()


def test_a_node_that_returns_under_another_name_is_met_again(federation):
    made = federation(nodes=2, rounds=3, active=6, min_clients=6)

    def watch(record, config):
        if record["round"] == 1:
            made.grid.nodes[200] = made.grid.nodes.pop(100)

    run = made.play(watch)
    assert [r["clients"] for r in run.records()] == [list(range(6))] * 3
    assert {node for node, _ in made.grid.log} == {100, 101, 200}


def test_a_node_that_does_not_answer_holds_up_nobody(federation, monkeypatch):
    """It is listed but dead: met neither at the start nor in a round, and asked every time."""
    monkeypatch.setattr("specgrad_fl.flower.executor.MEET_SECONDS", 0.2)
    made = federation(nodes=3, rounds=2, active=6, min_clients=2)
    made.grid.tamper = lambda node, reply: None if node == 101 else reply
    records = made.play().records()
    assert [record["clients"] for record in records] == [[0, 2, 3, 5]] * 2
    assert records[0]["reasons"] == [f"client {c}: no connected node has its data" for c in (1, 4)]
    asked = [node for node, kind in made.grid.log if kind == "query"]
    assert asked.count(101) >= 3
    assert asked.count(100) == asked.count(102) == 1
