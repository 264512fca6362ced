"""Results as data: every verdict of docs/results follows from the values beside it."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
from specgrad_fl import cli
from specgrad_fl.runs import RunDirectory
from specgrad_study.paper.archive import Archive, Measured, Missing, Source
from specgrad_study.paper.claims import Claim, Contrast, Interval, judge
from specgrad_study.paper.presets import PRESETS
from specgrad_study.paper.registry import EXPERIMENTS

DOCS = Path(__file__).parents[3] / "docs" / "results"
STORED = {path: json.loads(path.read_text("utf-8")) for path in sorted(DOCS.glob("*/results.json"))}
PARTS = [(path, name) for path, stored in STORED.items() for name in stored["experiments"]]
named = pytest.mark.parametrize(
    ("path", "name"), PARTS, ids=[f"{path.parent.name}-{name}" for path, name in PARTS]
)


def test_there_is_something_to_recompute():
    assert len(PARTS) >= 16
    assert sum(len(s["experiments"][n]["verdicts"]) for p, n in PARTS for s in [STORED[p]]) >= 30


def judged_again(stored: dict, experiment: str) -> list[tuple[str, str, str, int]]:
    """Claim, column, verdict and seeds of a stored report, computed anew from its values."""
    held = stored["experiments"][experiment]
    values = {
        (each["row"], each["column"]): {int(s): v for s, v in each["values"].items()}
        for each in held["values"]
    }
    again = []
    for each in held["verdicts"]:
        contrasts = tuple(
            Contrast(tuple((w, row) for w, row in d["terms"]), d["margin"], d["least"])
            for d in each["differences"]
        )
        claim = Claim(each["claim"], each["said"], contrasts)
        verdict = judge(claim, each["where"], values)
        again.append((claim.text, each["where"], verdict.text, verdict.seeds))
    return again


@named
def test_every_verdict_follows_from_the_values(path, name):
    stored = STORED[path]
    verdicts = stored["experiments"][name]["verdicts"]
    written = [(v["claim"], v["where"], v["text"], v["seeds"]) for v in verdicts]
    assert judged_again(stored, name) == written


@named
def test_verdicts_are_those_that_the_report_shows(path, name):
    report = (path.parent / "report.md").read_text("utf-8")
    preset = PRESETS[STORED[path]["preset"]]()
    for v in STORED[path]["experiments"][name]["verdicts"]:
        said = f" {v['said']} |" if v["said"] else ""
        where = preset.shown(v["where"])
        row = f"| {name} | {v['claim']} |{said} {where} | {v['text']} | {v['seeds']} |"
        assert row in report


@named
def test_claims_are_those_of_the_code(path, name):
    """A claim that was reworded or got another margin makes the stored report stale."""
    known = {claim.text: claim for claim in EXPERIMENTS[name].claims}
    for v in STORED[path]["experiments"][name]["verdicts"]:
        claim = known[v["claim"]]
        assert (v["said"], v["margin"]) == (claim.said, claim.margin)
        terms = [(d["terms"], d["margin"], d["least"]) for d in v["differences"]]
        expected = [([list(t) for t in c.terms], c.margin, c.least) for c in claim.contrasts]
        assert terms == expected


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.parent.name)
def test_accuracies_are_those_of_the_runs(path):
    stored = STORED[path]
    compared = 0
    for name, held in stored["experiments"].items():
        values = {(v["row"], v["column"]): v["values"] for v in held["values"]}
        for cell in held["cells"]:
            shown = values.get((cell["row"], cell["column"]))
            for seed, run in cell["runs"].items() if shown is not None else ():
                accuracy = 100 * stored["runs"][run]["mean_last_10"]
                assert shown[seed] == pytest.approx(accuracy, abs=1e-3), (name, cell)
                compared += 1
    assert compared > 50


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.parent.name)
def test_every_run_names_its_machine_and_commit(path):
    stored = STORED[path]
    for run in stored["runs"].values():
        source = stored["sources"][run["source"]]
        assert len(source["machine"]) > 20
        assert re.fullmatch(r"[0-9a-f]{40}|unknown", source["commit"])


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.parent.name)
def test_the_stored_settings_belong_to_the_preset(path):
    """A preset that has changed would make stored runs the runs of other settings."""
    stored = STORED[path]
    preset = PRESETS[stored["preset"]]()
    for name, held in stored["experiments"].items():
        cells = {cell.place: cell for cell in EXPERIMENTS[name].cells(preset)}
        for stored_cell in held["cells"]:
            cell = cells[stored_cell["row"], stored_cell["column"]]
            assert stored_cell["digest"] == (cell.config.digest if cell.config else None)


def test_an_earlier_report_fills_gaps_and_replaces_nothing():
    here, there = Source("here", "a"), Source("there", "b")
    measured = Measured({0: 1.0}, (Missing(1, "not run"), Missing(2, "not run")), {0: here})
    earlier = Measured({0: 5.0, 1: 2.0}, sources={0: there, 1: there})
    expected = Measured({0: 1.0, 1: 2.0}, (Missing(2, "not run"),), {0: here, 1: there})
    assert measured.filled(earlier) == expected


def reproduce(*words: str) -> int:
    return cli.main(["reproduce", "--preset=smoke", "--quiet", *words])


def test_an_earlier_report_stands_in_for_runs(play, tmp_path):
    """Two of seven rows are at hand; the other five and their sources come from the report."""
    played = play("strategies")
    runs, out = tmp_path / "runs", tmp_path / "out"
    for row in ("None (FedAvg)", "Gaussian detrend"):
        for seed in (0, 1):
            run = played.run(row, seed=seed).path
            shutil.copytree(run, runs / run.name)
    earlier = played.report / "results.json"
    flags = [f"--runs={runs}", f"--out={out}", f"--with={earlier}"]
    assert reproduce("strategies", *flags) == 0
    assert sorted(p.name for p in runs.iterdir() if p.is_dir()) == sorted(
        played.run(row, seed=seed).path.name
        for row in ("None (FedAvg)", "Gaussian detrend")
        for seed in (0, 1)
    ), "a run that an earlier report has was run again"
    now = json.loads((out / "results.json").read_text("utf-8"))
    before = json.loads(earlier.read_text("utf-8"))
    for then, held in zip(
        before["experiments"]["strategies"]["values"],
        now["experiments"]["strategies"]["values"],
        strict=True,
    ):
        assert held["values"] == pytest.approx(then["values"], abs=2e-6)
    told = [
        [(v["claim"], v["where"], v["text"], v["seeds"]) for v in stored["verdicts"]]
        for stored in (now["experiments"]["strategies"], before["experiments"]["strategies"])
    ]
    assert told[0] == told[1]
    from_report = {s["report"] for s in now["sources"]}
    assert from_report == {"", f"{earlier.parent.name}/results.json"}
    text = (out / "report.md").read_text("utf-8")
    assert "14 of the 14 runs" in text
    assert (
        f"- 10 runs, commit {now['sources'][-1]['commit'][:12]}, from {earlier.parent.name}" in text
    )


def test_a_run_that_finishes_meanwhile_is_not_in_a_report_half(play, tmp_path):
    """Its value would be missing in a table beside its name."""
    run = play("strategies").run("Gaussian detrend")
    archive = Archive(tmp_path)
    assert archive.finished(run.config()) is None
    shutil.copytree(run.path, tmp_path / run.path.name)
    assert archive.finished(run.config()) is None
    assert Archive(tmp_path).finished(run.config()) is not None


def test_an_earlier_report_of_another_preset_is_read_and_said(play, tmp_path):
    played = play("strategies")
    stored = json.loads((played.report / "results.json").read_text("utf-8"))
    other = tmp_path / "other" / "results.json"
    other.parent.mkdir()
    renamed = {name.replace("digits", "cifar10"): run for name, run in stored["runs"].items()}
    other.write_text(json.dumps({**stored, "preset": "cpu", "runs": renamed}))
    out = tmp_path / "out"
    flags = [f"--runs={played.runs}", f"--out={out}", "--report-only", f"--with={other}"]
    assert reproduce("strategies", *flags) == 0
    text = (out / "report.md").read_text("utf-8")
    assert "other/results.json is a report of the preset cpu: 14 of its 14 runs" in text


def test_runs_of_other_commits_machines_and_settings_are_said(play, tmp_path):
    played = play("strategies")
    runs = tmp_path / "runs"
    shutil.copytree(played.runs, runs, ignore=shutil.ignore_patterns("report-*", "diagnosis"))
    run = RunDirectory(runs / played.run("Gaussian detrend").path.name)
    facts = json.loads((run.path / "environment.json").read_text("utf-8"))
    facts |= {"cpu": "another CPU", "commit": "f" * 40}
    (run.path / "environment.json").write_text(json.dumps(facts))
    shutil.copytree(run.path, runs / "digits-of-another-preset")
    assert reproduce("strategies", f"--runs={runs}", "--report-only") == 0
    text = (runs / "report" / "report.md").read_text("utf-8")
    assert "Results of 2 commits and 2 machines are in this report." in text
    assert f"- 1 runs, commit {'f' * 12}: another CPU" in text
    assert re.search(r"\d+ finished runs in the folder have other settings", text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON file"),
        ('{"preset": "cpu"}', "is no results.json of this version"),
        ('{"format": 2, "preset": "cpu"}', "is damaged (KeyError"),
        (None, "cannot read"),
    ],
)
def test_a_damaged_earlier_report_is_refused_in_a_sentence(tmp_path, capsys, content, message):
    path = tmp_path / "results.json"
    if content is not None:
        path.write_text(content)
    flags = [f"--runs={tmp_path}", "--report-only", f"--with={path}"]
    assert reproduce("strategies", *flags) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1


RESULTS_PAGE = {
    "high frequencies removed": ("strategies", "High-frequency suppression"),
    "random frequencies removed": ("strategies", "Random suppression"),
    "shortened, direction kept": ("strategies", "l2-norm rescaling"),
    "local average subtracted (`lap`)": ("strategies", "Local average pooling detrend"),
    "Gaussian average subtracted (`gaussian`)": ("strategies", "Gaussian detrend"),
    "low frequencies removed (`fft`)": ("strategies", "Low-frequency suppression"),
    "mean of each output channel subtracted (`centralize`)": ("mechanism", "centralize"),
    "low frequencies removed, those means put back": ("mechanism", "fft, channel means kept"),
}


def test_the_gains_on_the_results_page_are_those_of_the_report():
    text = (DOCS.parent / "results.md").read_text("utf-8")
    stored = STORED[DOCS / "paper" / "results.json"]["experiments"]
    values = {
        (name, each["row"]): each["values"]
        for name, column in (("strategies", "CIFAR-10"), ("mechanism", "CIFAR-10, alpha 0.1"))
        for each in stored[name]["values"]
        if each["column"] == column
    }
    base = values["strategies", "None (FedAvg)"]
    for label, place in RESULTS_PAGE.items():
        line = next(line for line in text.splitlines() if line.startswith(f"| {label} |"))
        *cells, whole = [cell.strip() for cell in line.strip("|").split("|")][2:]
        gains = {int(seed): v - base[seed] for seed, v in values[place].items()}
        shown = {seed: float(cell) for seed, cell in enumerate(cells) if cell}
        assert shown == pytest.approx(gains, abs=0.0501)
        interval = Interval.of(gains)
        told = [float(number) for number in re.findall(r"[+-][\d.]+", whole)]
        assert told == pytest.approx([interval.mean, *interval.ends], abs=0.0501), label


def test_the_page_on_the_mechanism_has_the_tables_of_the_report():
    report = (DOCS / "paper" / "report.md").read_text("utf-8")
    part = report[report.index("## What does the work?") :].partition("\n\n## ")[0]
    tables = re.findall(r"(?:^\|.*\n)+", part, re.MULTILINE)
    shown = [table for table in tables if not table.startswith("| claim |")]
    page = (DOCS.parent / "mechanism.md").read_text("utf-8")
    assert shown
    for table in shown:
        assert table in page


Gains = dict[tuple[str, str, str], dict[int, float]]


def measured_values() -> list[dict[int, float]]:
    """Values of every cell of the stored report that has several seeds."""
    experiments = STORED[DOCS / "paper" / "results.json"]["experiments"].values()
    cells = [each["values"] for held in experiments for each in held["values"]]
    return [{int(s): v for s, v in values.items()} for values in cells if len(values) > 1]


def paired_differences() -> Gains:
    """Between any two rows of a column of the stored report, by seed, both ways round."""
    found: Gains = {}
    for held in STORED[DOCS / "paper" / "results.json"]["experiments"].values():
        for one, other in itertools.permutations(held["values"], 2):
            seeds = one["values"].keys() & other["values"].keys()
            if one["column"] == other["column"] and len(seeds) > 1:
                place = one["row"], other["row"], one["column"]
                found[place] = {int(s): one["values"][s] - other["values"][s] for s in seeds}
    return found


def between_columns(gains: Gains) -> Iterator[dict[int, float]]:
    """Differences of a gain over no filter between two federations."""
    over_none = [(place[0], gain) for place, gain in gains.items() if place[1] == "none"]
    for (row, gain), (other, there) in itertools.permutations(over_none, 2):
        seeds = gain.keys() & there.keys()
        if row == other and len(seeds) > 1:
            yield {seed: gain[seed] - there[seed] for seed in seeds}


def by_other_evaluations() -> Iterator[dict[int, float]]:
    """Differences by final accuracy, early rounds or late ones, in place of the last ten rounds."""
    stored = STORED[DOCS / "paper" / "results.json"]
    views = [
        lambda run: run["final_accuracy"],
        *(
            lambda run, rounds=rounds: statistics.fmean(run["evaluations"][str(r)] for r in rounds)
            for rounds in ((5, 10, 15, 20), range(35, 41))
        ),
    ]
    cells = [cell for cell in stored["experiments"]["mechanism"]["cells"] if cell["runs"]]
    for one, other in itertools.permutations(cells, 2):
        for view in views if one["column"] == other["column"] else ():
            apart = {}
            for seed in one["runs"].keys() & other["runs"].keys():
                with contextlib.suppress(KeyError):  # a run without its evaluations
                    pair = [view(stored["runs"][cell["runs"][seed]]) for cell in (one, other)]
                    apart[int(seed)] = 100 * (pair[0] - pair[1])
            if len(apart) > 1:
                yield apart


@pytest.mark.parametrize("page", ["README.md", "docs/results.md", "docs/mechanism.md"])
def test_every_interval_in_prose_is_one_of_the_report(page):
    text = (DOCS.parents[1] / page).read_text("utf-8")
    number = r"([+-]?\d+\.\d+)"
    told = re.findall(rf"{number}(?:\s%)?\s\[{number},\s{number}\]", text)
    gains = paired_differences()
    differences = (*gains.values(), *between_columns(gains), *by_other_evaluations())
    intervals = map(Interval.of, (*differences, *measured_values()))
    known = [(each.mean, *each.ends) for each in intervals]
    assert len(told) > 5
    for triple in told:
        rounded = [float(each) for each in triple]
        apart = (max(abs(a - b) for a, b in zip(rounded, each, strict=True)) for each in known)
        assert min(apart) < 0.0501, triple
