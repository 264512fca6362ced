"""Clients' states live on nodes, and survive the server's death and resumption."""

from __future__ import annotations

import pytest
from federations import result_of
from specgrad_fl import training
from specgrad_fl.errors import RunError
from specgrad_fl.flower.place import ClientStateStore


class Killed(BaseException):
    """Stands for a server that dies in the middle of a round, which no handler of errors sees."""


def dies_in(made, number):
    """The server dies after clients have answered a round, before it is stored."""
    real = made.grid.pull_messages
    answers = []

    def pull(names):
        replies = real(names)
        answers.extend(r for r in replies if r.metadata.message_type == "train")
        if len(answers) > 2 * number:
            raise Killed
        return replies

    made.grid.pull_messages = pull
    return real


@pytest.mark.parametrize(
    ("method", "every"),
    [
        ("scaffold", 2),
        pytest.param("scaffold", 1, marks=pytest.mark.exhaustive),
        pytest.param("feddyn", 2, marks=pytest.mark.exhaustive),
    ],
)
def test_a_server_that_dies_finds_the_states_of_its_checkpoint(
    tmp_path, small, federation, method, every
):
    settings = {
        "method": method, "rounds": 4, "active": 4, "clients": 4, "checkpoint_every": every,
    }  # fmt: skip
    here = training.train(small(**settings), tmp_path / "here")
    made = federation(nodes=2, **settings)
    real = dies_in(made, 3)
    with pytest.raises(Killed):
        made.play()
    assert len(made.run.records()) == 3
    made.grid.pull_messages = real
    made.play()
    assert result_of(made.run) == result_of(here)
    kept = list(made.nodes[100].glob("state/*/*.safetensors"))
    assert len(kept) <= 2 * 3
    assert not made.run.clients_path.exists()


def test_a_lost_state_is_told(federation):
    made = federation(nodes=2, method="scaffold", rounds=2, active=6, min_clients=6)

    def lose(record, config):
        (lost,) = made.nodes[100].glob("state/*/000002-000001.safetensors")
        lost.unlink()

    with pytest.raises(RunError, match=r"client 2 has no state of round 1: .+ is missing"):
        made.play(lose)


def test_states_are_kept_by_run(tmp_path):
    with pytest.raises(RunError, match="expected its name in hexadecimal digits"):
        ClientStateStore(tmp_path, "../../elsewhere")
