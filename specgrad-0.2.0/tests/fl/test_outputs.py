"""Output of runs: TensorBoard events, progress, summaries."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys

import pytest
import torch
from specgrad_fl import progress, records
from specgrad_fl.config import Config
from specgrad_fl.machine import peak_mib
from specgrad_fl.records import flattened
from specgrad_fl.summary import summarise


def records_of(data: bytes) -> list[bytes]:
    """The records of an event file, checksums verified."""
    found = []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        whole, data = data[: 16 + length], data[16 + length :]
        assert records.framed(whole[12 : 12 + length]) == whole
        found.append(whole[12 : 12 + length])
    return found


def test_event_file(tmp_path):
    path = tmp_path / records.file_name(1.0)
    records.append_scalars(path, 12.5, 3, {"loss": 0.5, "accuracy": 0.25})
    records.append_scalars(path, 13.5, 400, {"loss": 0.125})
    version, loss, accuracy, last = records_of(path.read_bytes())
    assert version.endswith(b"brain.Event:2")
    assert b"loss" in loss
    assert struct.pack("<f", 0.5) in loss
    assert b"accuracy" in accuracy
    # wall time as field 1 (double), step as field 2 (varint): 400 is 0x90 0x03
    assert last.startswith(b"\x09" + struct.pack("<d", 13.5) + b"\x10\x90\x03")


def test_tensorboard_reads_the_events(tmp_path):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard"
    )
    path = tmp_path / records.file_name(1.0)
    for step in range(3):
        records.append_scalars(path, 10.0 + step, step, {"test/accuracy": step / 4})
    read = accumulator.EventAccumulator(str(tmp_path))
    read.Reload()
    values = [(e.wall_time, e.step, e.value) for e in read.Scalars("test/accuracy")]
    assert values == [(10.0, 0, 0.0), (11.0, 1, 0.25), (12.0, 2, 0.5)]


def record(number: int, accuracy: float | None = None) -> dict:
    scored = {} if accuracy is None else {"test_accuracy": accuracy, "test_loss": 1.0}
    return {
        "round": number,
        "lr": 0.1,
        "train_loss": 2.0,
        "clients": [1, 2],
        "bytes_up": 10,
        "bytes_down": 20,
        **scored,
        "time": 0.0,
        "seconds": {
            "round": 2.0, "train": 1.0, "aggregate": 0.25, "evaluate": 0.5,
            "client_compute": 3.0, "client_filter": 1.0,
        },
        "filter_share": 0.25,
        "memory_mib": {"parent": 100.0, "workers": 50.0},
    }  # fmt: skip


def test_summary():
    rounds = [record(1, 0.25), record(2), record(3, 0.75), record(4, 0.5)]
    found = summarise(rounds, Config(target=0.7))
    assert found["final_accuracy"] == 0.5
    assert (found["best_accuracy"], found["best_round"]) == (0.75, 3)
    assert found["mean_last_10"] == 0.5
    assert found["rounds_to_target"] == 3
    assert found["filter_share"] == 0.25
    assert found["evaluate_share"] == 0.25
    assert (found["bytes_up"], found["bytes_down"]) == (40, 80)
    assert found["peak_mib"] == 150
    assert summarise(rounds, Config(target=0.9))["rounds_to_target"] is None
    assert summarise(rounds, Config())["rounds_to_target"] is None


def test_mean_of_the_last_ten_rounds_alone():
    rounds = [record(n, 0.0 if n <= 10 else 1.0) for n in range(1, 21)]
    assert summarise(rounds, Config())["mean_last_10"] == 1.0


def test_time_split():
    assert progress.time_split(record(1)) == {
        "compute": 0.375,
        "filter": 0.125,
        "aggregate": 0.125,
        "evaluate": 0.25,
    }


def test_terminal_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    stream = io.StringIO()
    show = progress.Terminal(stream, "label")
    config = Config(rounds=2)
    show(record(1, 0.5), config)
    show(record(2), config)
    line = stream.getvalue().split("\r\x1b[2K")[-1]
    assert line.startswith("label  round 2/2  accuracy 50.0% (best 50.0%)  left 0:00:00")
    assert "loss 2.000" in line
    assert "filter 12.5%" in line
    assert line.endswith("\n")


def test_lines_are_json():
    stream = io.StringIO()
    progress.Lines(stream, "label")(record(1, 0.5), Config())
    shown = json.loads(stream.getvalue())
    assert shown["run"] == "label"
    assert shown["test_accuracy"] == 0.5
    assert "clients" not in shown


def test_flattened_names():
    flat = flattened(record(1))
    assert flat["seconds.client_filter"] == 1.0
    assert "clients" not in flat


def test_the_peak_of_a_process_is_its_own():
    """A child inherits its parent's peak from the system's accounts; it must not report it."""
    ballast = torch.ones(250 * 2**20 // 4)
    program = "from specgrad_fl.client import peak_mib; print(peak_mib())"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert float(child.stdout) < peak_mib() - 100
    assert ballast.sum() > 0


def test_rounds_are_added_to_the_table(tmp_path):
    """A new round is one more line; a new column writes the file anew, and resuming does."""
    found = records.Records(tmp_path / "metrics.jsonl")
    table = tmp_path / "metrics.csv"

    def written(**numbers: float) -> int:
        found.append({"round": len(found) + 1, "time": 1.0, **numbers})
        found.write_csv()
        return table.stat().st_ino

    first = written(loss=2.0)
    assert written(loss=1.5) == first
    second = written(loss=1.0, accuracy=0.5)
    assert second != first
    assert written(loss=0.5) == second
    whole = "round,time,loss,accuracy\n1,1.0,2.0,\n2,1.0,1.5,\n3,1.0,1.0,0.5\n4,1.0,0.5,\n"
    assert table.read_text() == whole
    table.write_text(whole[:-4])  # as a crash may leave it
    resumed = records.Records(found.path)
    resumed.extend(found)
    resumed.write_csv()
    assert table.read_text() == whole
