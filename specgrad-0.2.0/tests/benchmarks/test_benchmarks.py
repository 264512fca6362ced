"""The benchmark measures what it says: right contenders, right lists, right verdicts."""

from __future__ import annotations

import doctest
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from specgrad_fl.models import resnet20
from torch import Tensor

from benchmarks import (
    accuracy,
    cases,
    cliffs,
    cold,
    memory,
    progress,
    report,
    run,
    step,
    strategies,
    timing,
    workloads,
)
from benchmarks.contenders import CONTENDERS, METHODS, OURS, Contender, contenders_of
from benchmarks.targets import TARGETS, Target
from benchmarks.timing import Effort, Summary, time_in_turn
from benchmarks.workloads import WORKLOADS, Workload
from specgrad_kernels import (
    FilterSpec,
    available_backends,
    filter_grads_,
    reference,
    select_layers,
)

native = pytest.mark.skipif("cpp" not in available_backends(), reason="no native library")

# two layers of equal length to be stacked, an odd length, and one too short to be filtered
SMALL = Workload("resnet20", "small", ((8, 4, 3, 3), (16, 2, 3, 3), (7, 5, 3, 3), (4, 9)))
FAST = Effort(0.001, fewest=2, most=3)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """On a busy machine, threads that wait for each other take most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "module", [report, strategies, timing, workloads], ids=lambda m: m.__name__
)
def test_examples(module: ModuleType) -> None:
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0


@pytest.mark.parametrize(
    ("name", "layers", "weights"),
    [
        ("resnet20", 19, 267_696),
        ("resnet18", 17, 10_987_200),
        ("wrn56_2", 55, 3_392_352),
        ("densenet121", 117, 6_174_400),
        ("vit", 1, 24_576),
        ("long", 1, 2**24),
    ],
)
def test_lists_have_the_published_size(name: str, layers: int, weights: int) -> None:
    assert len(WORKLOADS[name].shapes) == layers
    assert WORKLOADS[name].weights == weights


def test_resnet18_lengths() -> None:
    counts = Counter(math.prod(shape) for shape in WORKLOADS["resnet18"].shapes)
    assert counts == {
        1_728: 1,
        36_864: 4,
        73_728: 1,
        147_456: 3,
        294_912: 1,
        589_824: 3,
        1_179_648: 1,
        2_359_296: 3,
    }


def test_the_network_is_the_one_of_the_list() -> None:
    taken = select_layers(resnet20(num_classes=10)).taken.values()
    assert tuple(tuple(p.shape) for p in taken) == WORKLOADS["resnet20"].shapes


@pytest.mark.parametrize(
    ("method", "name"),
    [(m, c.name) for m in METHODS for c in contenders_of(m, SMALL.longest) if c.filters],
)
def test_contenders_filter_in_place(method: str, name: str) -> None:
    grads = SMALL.gradients()
    spec = FilterSpec(method=method, ratio=0.05)
    expected = [accuracy.truth(grad, spec) for grad in grads]
    addresses = [grad.data_ptr() for grad in grads]
    CONTENDERS[name].bind(grads, method, 0.05)()
    assert [grad.data_ptr() for grad in grads] == addresses
    assert accuracy.worst_error(grads, expected) < 1e-6
    assert not torch.equal(grads[0], SMALL.gradients()[0])
    if spec.kind.parameters(spec, grads[3].shape, 3) is None:  # too short for its ratio
        torch.testing.assert_close(grads[3], SMALL.gradients()[3])


@pytest.mark.parametrize("method", ["lap", "gaussian"])
def test_truth_of_a_long_layer_has_no_seams(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    signal = torch.randn(1000, dtype=torch.float64)
    spec = FilterSpec(method=method, ratio=0.05)
    parameters = spec.kind.parameters(spec, signal.shape, 0)
    whole = spec.kind.reference(signal[None], parameters, spec)[0]
    monkeypatch.setattr(accuracy, "_PIECE", 96)
    torch.testing.assert_close(accuracy.truth(signal, spec), whole, rtol=0, atol=1e-14)


def test_a_wrong_contender_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def does_nothing(grads: list[Tensor], method: str, ratio: float) -> Any:
        return lambda: None

    wrong = Contender("wrong", "a wrong one", ("fft",), does_nothing)
    monkeypatch.setitem(CONTENDERS, "wrong", wrong)
    with pytest.raises(cases.WrongResultError, match="a wrong one is off by"):
        cases.time_case(SMALL, "fft", [1], FAST)


def test_every_contender_is_timed_on_the_same_fresh_gradients() -> None:
    value, seen = torch.zeros(()), []

    def spoil() -> None:
        seen.append(float(value))
        value.fill_(1)

    effort = Effort(10.0, most=3)
    summaries = time_in_turn({"a": spoil, "b": spoil}, effort, value.zero_)
    assert set(seen) == {0.0}
    assert [summary.rounds for summary in summaries.values()] == [3, 3]


@pytest.fixture(scope="module")
def rows(one_thread: None) -> list[dict[str, Any]]:
    """A small result of every kind."""
    lists = {"resnet20": SMALL, "vit": Workload("vit", "small", ((512, 4),))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "BATCH", 2)
        measured = cases.overhead_case(FAST) + cases.step_case(1, 0.0, fewest=1)
    for workload in lists.values():
        for method in METHODS:
            threads = [1, 2] if method == "fft" else [1]
            measured += cases.time_case(workload, method, threads, FAST)
            measured += cases.accuracy_case(workload, method, [0.05])
        measured += cases.memory_case(workload, "fft", [1, 2])
    return measured


def test_rows_are_complete(rows: list[dict[str, Any]]) -> None:
    fields = {
        "time": {"workload", "method", "dtype", "ratio", "threads", "contender"},
        "accuracy": {"workload", "method", "dtype", "ratio", "error"},
        "memory": {"workload", "method", "threads", "workspace", "kept"},
        "overhead": {"call", "tensors"},
        "step": {"method", "contender", "threads", "step", "filter", "share"},
    }
    statistics = {"median", "q1", "q3", "minimum", "rounds"}
    assert {row["kind"] for row in rows} == set(fields)
    for row in rows:
        timed = statistics if row["kind"] in ("time", "overhead") else set()
        assert set(row) == {"kind"} | fields[row["kind"]] | timed
        if timed:
            assert 0 < row["minimum"] <= row["q1"] <= row["median"] <= row["q3"]
        if row["kind"] == "accuracy":
            assert row["error"] < (1e-6 if row["dtype"] == "float32" else 1e-13)
        if row["kind"] == "step":
            assert 0 < row["share"] < 1


def test_verdicts() -> None:
    faster = Target("", 30, 60, "x", True, lambda rows, statistic: {}, figures=2)
    assert faster.verdict({}) == "not measured"
    assert faster.verdict({"1 thread": 100, "2 threads": 29}) == "missed"
    assert faster.verdict({"1 thread": 100, "2 threads": 30}) == "must"
    assert faster.verdict({"1 thread": 60, "2 threads": 61}) == "aim"
    assert faster.verdict({"1 thread": 60}) == "aim (1 of 2 cases)"
    smaller = Target("", 0.005, 0.002, "%", False, lambda rows, statistic: {}, figures=2)
    assert smaller.verdict({"a": 0.001, "b": 0.006}) == "missed"
    assert smaller.verdict({"a": 0.001, "b": 0.004}) == "must"
    assert smaller.measured({"a": 0.001, "b": 0.006, "c": 0.002}) == "0.6 % (b) to 0.1 %"


def _time_row(workload: str, method: str, contender: str, median: float) -> dict[str, Any]:
    row = {"kind": "time", "workload": workload, "method": method, "threads": 1}
    return {**row, "contender": contender, "median": median, "minimum": median / 2}


def test_gaussian_is_compared_with_the_faster_convolution() -> None:
    seconds = {"conv_loop": 9.0, "conv_native_loop": 4.0, OURS: 0.1}
    rows = [_time_row("vit", "gaussian", name, value) for name, value in seconds.items()]
    (target,) = [t for t in TARGETS if t.title.startswith("gaussian vs conv1d")]
    assert target.values(rows, "median") == {"ViT patch embedding, 1t": 40.0}


def test_over_the_floor_is_a_cost() -> None:
    rows = [_time_row("resnet20", "fft", "floor", 1.0), _time_row("resnet20", "fft", OURS, 3.0)]
    (target,) = [t for t in TARGETS if t.title == "fft, ResNet-20, over the floor"]
    assert target.values(rows, "median") == {"1 thread": 3.0}
    assert target.verdict({"1 thread": 3.0}) == "must"


def _results(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "schema": report.SCHEMA,
        "command": "python -m benchmarks.run",
        "machine": {"cpu": "A CPU", "cores": 2, "instruction_set": "avx2", "load_at_start": 0.1},
        "versions": {"torch": "2.13.0", "python": "3.11"},
        "commit": None,
        "load_at_end": 0.2,
        "complete": False,
        "rows": rows,
    }


def test_the_page_renders(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "results" / "cpu.json"
    page = report.save(_results(rows), path).read_text()
    assert report.load_results(path)["rows"] == rows
    table = re.findall(r"^\| (.*) \|$", page.split("Where a line")[0], re.MULTILINE)
    assert len(table) == 2 + len(TARGETS)
    assert all(line.count("|") == 5 for line in table)
    assert "not completed" in page
    assert [p.name for p in path.parent.iterdir() if p.suffix not in (".json", ".md")] == []


def test_a_page_without_rows_renders() -> None:
    assert report.render(_results([])).count("not measured") > len(TARGETS)


def test_lines_know_when_they_are_fully_measured() -> None:
    """The whole suite, with every figure made up, leaves no line partly measured."""
    figure = {"median": 1.0, "minimum": 1.0}
    rows: list[dict[str, Any]] = [
        {"kind": "overhead", "call": call, **figure}
        for call in ("filter_grads_", "plan.filter_grads_")
    ]
    for workload in WORKLOADS.values():
        for method in METHODS:
            place = {"workload": workload.name, "method": method}
            for ratio in cases.ratios_of(method, workload):
                for dtype in ("float32", "float64"):
                    error = {"dtype": dtype, "ratio": ratio, "error": 0.0}
                    rows.append({"kind": "accuracy", **place, **error})
            for threads in cases.THREADS:
                here = {**place, "threads": threads}
                rows.append({"kind": "memory", **here, "workspace": 0.0, "kept": 0.0})
                rows.append({"kind": "step", **here, "contender": OURS, "step": figure})
                rows[-1]["filter"] = figure
                for contender in contenders_of(method, workload.longest):
                    rows.append({"kind": "time", **here, "contender": contender.name, **figure})
    for target in TARGETS:
        assert len(target.values(rows, "median")) == target.figures, target.title


def test_strange_results_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for content in ("{", "[]", '{"schema": 0}'):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"x\.json"):
            report.load_results(path)
    with pytest.raises(ValueError, match="cannot be read"):
        report.load_results(tmp_path / "absent.json")


def test_plots(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks import plot

    path = tmp_path / "cpu.json"
    report.save(_results(rows), path)
    for picture in plot.draw(path):
        content = picture.read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) < 150_000


def test_run_writes_what_it_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cpu.json"
    arguments = ["--quick", "--only", "accuracy", "vit", "fft", "--output", str(path)]
    assert run.main(arguments) == 0
    results = json.loads(path.read_text())
    assert results["complete"]
    assert results["machine"]["cores"] >= 1
    assert {row["ratio"] for row in results["rows"]} == set(cases.RATIOS)
    assert "float32 error" in capsys.readouterr().out


def test_an_interrupted_run_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> list[dict[str, Any]]:
        raise KeyboardInterrupt

    measured = cases.Case("done", frozenset({"overhead"}), 1, partial(cases.overhead_case, FAST))
    stopped = cases.Case("stopped", frozenset({"time"}), 1, interrupted)
    monkeypatch.setattr(run, "all_cases", lambda threads, quick: [measured, stopped])
    path = tmp_path / "cpu.json"
    assert run.main(["--output", str(path)]) == 130
    results = report.load_results(path)
    assert not results["complete"]
    assert {row["kind"] for row in results["rows"]} == {"overhead"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threads", "0"], "--threads must be positive"),
        (["--only", "nonsense"], "--only nonsense names no case"),
        (["--only", "fft", "lap"], "no case carries all these words"),
        (["--output", "x.txt"], "must name a .json file"),
    ],
)
def test_wrong_usage_is_explained(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        run.main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@native
def test_strategies_reports_only_bad_choices() -> None:
    def comparison(chosen: str) -> strategies.Comparison:
        times = {"dense": Summary.of([2e-5]), "band": Summary.of([1e-5])}
        return strategies.Comparison(432, 0.05, 10, "float32", chosen, times)

    good, bad = comparison("band"), comparison("dense")
    assert strategies.badly_chosen([good, bad], 0.25, "minimum") == [bad]
    assert strategies.badly_chosen([good, bad], 1.5, "minimum") == []
    measured = strategies.compare(432, 0.05, torch.float32, FAST)
    assert set(measured.times) == {"dense", "band", "full"}
    assert "432" in strategies.render([bad], 0.25, "median")


def kept_share() -> float:
    return memory.kept_share(WORKLOADS["vit"], FilterSpec(ratio=0.05))


@native
def test_memory_is_measured() -> None:
    kept = kept_share()
    assert 0 < memory.workspace_share(WORKLOADS["vit"], FilterSpec(ratio=0.05)) < kept < 2


@native
def test_memory_is_measured_whatever_was_filtered_before() -> None:
    first = kept_share()
    for seed in range(300):
        filter_grads_([torch.zeros(10_007)], ratio=0.05 + seed / 1e6)
    filter_grads_(WORKLOADS["vit"].gradients())
    assert kept_share() == pytest.approx(first, rel=0.05)  # threads share work by chance


@pytest.mark.parametrize("contender", [OURS, step.LOOP])
def test_the_step_filters_the_selected_layers(
    contender: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "BATCH", 2)
    training = step.TrainingStep("fft", contender, 0.05)
    whole, inside = training.run()
    assert 0 < inside < whole
    assert len(training.gradients()) == 19
    for grad in training.gradients():
        spectrum = torch.fft.rfft(grad.flatten()).abs()
        suppressed = reference.cutoff(0.05, grad.numel())
        assert float(spectrum[:suppressed].max()) < 1e-4 * float(spectrum.max())


def test_progress_corrects_its_guess(capsys: pytest.CaptureFixture[str]) -> None:
    shown = progress.Progress([1.0, 3.0])
    assert shown.left() == 4.0
    shown.begin("first")
    shown.start -= 2.0
    assert shown.left() == pytest.approx(6.0, abs=0.5)
    assert "[1/2] first" in capsys.readouterr().err


def test_cold_and_warm_calls_are_timed_in_turn(capsys):
    assert cold.main(["--seconds=0.01", "--threads=1", "--evict=1"]) == 0
    rows = capsys.readouterr().out.splitlines()[3:]
    assert [row.split(" | ")[1] for row in rows] == ["warm", "cold"]
    assert all(row.endswith("x |") for row in rows)


def test_cliffs_are_searched_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert cliffs.main(["--count", "4", "--worst", "2"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("| input | first call, s | ours, ms | torch, ms | ratio |")
    assert "4 inputs: " in printed
