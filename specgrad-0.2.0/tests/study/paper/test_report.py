"""The report: what is missing is named, tuned files and shards, and the page in a browser."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from specgrad_fl import cli
from specgrad_fl.errors import RunError
from specgrad_study.paper import command, document, timing
from specgrad_study.paper.document import Bullets, Heading, Paragraph, Picture, Table
from specgrad_study.paper.experiment import Context
from specgrad_study.paper.presets import PRESETS
from specgrad_study.paper.registry import EXPERIMENTS


@pytest.fixture
def reproduce(capsys, tmp_path):
    """Runs the command: exit code, output, errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(["reproduce", "--preset=smoke", "--quiet", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_unfinished_cells_are_named(reproduce, play, tmp_path):
    played = play("strategies")
    runs = tmp_path / "runs"
    shutil.copytree(played.runs, runs, ignore=shutil.ignore_patterns("report-*", "diagnosis"))
    stopped = runs / played.run("Gaussian detrend").path.name
    (stopped / "summary.json").unlink()
    shutil.rmtree(runs / played.run("Random suppression", seed=1).path.name)
    diverged = runs / played.run("l2-norm rescaling").path.name
    (diverged / "summary.json").unlink()
    (diverged / "diverged.txt").write_text("round 1: the loss is nan\n")
    assert reproduce("strategies", f"--runs={runs}", "--report-only")[0] == 0
    text = (runs / "report" / "report.md").read_text()
    assert "- CIFAR-10, seed 0: at round 2 of 2: Gaussian detrend" in text
    assert "- CIFAR-10, seed 1: not run: Random suppression" in text
    assert "- CIFAR-10, seed 0: diverged: l2-norm rescaling" in text
    assert "- left out by this preset: CIFAR-100" in text
    assert "11 of the 14 runs" in text
    assert not (stopped / "summary.json").exists()


def test_rows_without_a_result_are_named_below_the_table_alone(reproduce, play, tmp_path):
    """Unless the paper has a number for them, as for the strategies."""
    played = play("strategies")
    for row in ("None (FedAvg)", "Low-frequency suppression"):
        run = played.run(row).path
        shutil.copytree(run, tmp_path / run.name)
    assert reproduce("mechanism", "strategies", f"--runs={tmp_path}", "--report-only")[0] == 0
    text = (tmp_path / "report" / "report.md").read_text()
    mechanism = text[text.index("## What does the work?") :]
    assert "| fft 0.05 |" in mechanism
    assert "| centralize |" not in mechanism
    assert re.search(r"- CIFAR-10, alpha 0.1, seed 0: not run: .*centralize", mechanism)
    assert "| Gaussian detrend | 77." in text


def test_an_empty_folder_gives_a_report_without_results(reproduce, tmp_path):
    assert reproduce("all", f"--runs={tmp_path / 'none'}", "--report-only")[0] == 0
    text = (tmp_path / "none" / "report" / "report.md").read_text()
    assert text.count("No cell is finished.") == len(EXPERIMENTS)
    assert "0 supported, 0 contradicted, 0 undecided. Not counted: 0 preliminary" in text
    assert "| supports |" not in text
    assert "| contradicts |" not in text


def test_what_cannot_be_measured_is_said_after_the_report(reproduce, tmp_path, monkeypatch):
    def fail(configs, rounds):
        raise RunError("no clock")

    monkeypatch.setattr(timing, "contest", fail)
    code, _, err = reproduce("time", f"--runs={tmp_path}", "--seeds=0")
    assert code == 2
    assert "1 runs or measurements did not finish; the first: time: no clock" in err
    assert (tmp_path / "report" / "report.md").is_file()


def test_timings_are_kept_one_data_set_after_the_other(tmp_path, monkeypatch):
    timed = []

    def contest(configs, rounds):
        timed.append(len(configs))
        if len(timed) == 2:
            raise KeyboardInterrupt
        return {config.digest: {} for config in configs}

    monkeypatch.setattr(timing, "contest", contest)
    preset = PRESETS["paper"]()
    cells = timing.TIME.cells(preset)
    context = Context(preset, tmp_path, lambda text: None, "", 1)
    with pytest.raises(KeyboardInterrupt):
        timing.measure(cells, context)
    timing.measure(cells, context)
    # the first contest of three data sets and three seeds was kept
    assert len(timed) == 1 + 3 * len(timing.IMAGES)
    (tmp_path / "timing.json").write_text("{")
    with pytest.raises(RunError, match=r"timing\.json is damaged"):
        timing.measure(cells, context)


def test_a_run_without_a_readable_environment_is_counted(reproduce, play, tmp_path):
    played = play("strategies")
    runs = tmp_path / "runs"
    shutil.copytree(played.runs, runs, ignore=shutil.ignore_patterns("report-*", "diagnosis"))
    (runs / played.run("Gaussian detrend").path.name / "environment.json").write_text("{}")
    assert reproduce("strategies", f"--runs={runs}", "--report-only")[0] == 0
    assert "- 1 runs, commit unknown: unknown" in (runs / "report" / "report.md").read_text()


def test_another_measure_and_more_seeds(reproduce, play):
    played = play("strategies")
    runs, out = played.runs, played.runs / "report-best"
    flags = [f"--runs={runs}", f"--out={out}", "--report-only"]
    assert reproduce("strategies", *flags, "--measure=best", "--seeds=0,1,2")[0] == 0
    stored = json.loads((out / "results.json").read_text())
    held = stored["experiments"]["strategies"]
    run = stored["runs"][held["cells"][0]["runs"]["0"]]
    value = held["values"][0]
    assert value["values"]["0"] == pytest.approx(100 * run["best_accuracy"], abs=1e-3)
    assert value["missing"] == ["seed 2: not run"]
    assert "--seeds=0,1,2 --measure=best" in (out / "report.md").read_text()


def test_tuned_settings_reach_the_cells_of_their_method(reproduce, tmp_path):
    (tmp_path / "best.toml").write_text('method = "fedavg"\nlr = 0.025\n')
    runs = tmp_path / "runs"
    flags = [f"--runs={runs}", "--shard=1/10", f"--tuned={tmp_path / 'best.toml'}"]
    assert reproduce("table2", *flags)[0] == 0
    configs = [path.read_text() for path in runs.glob("*/config.toml")]
    assert 0 < len(configs) <= 2
    assert all(("lr = 0.025" in text) == ('method = "fedavg"' in text) for text in configs)
    code, _, err = reproduce("table2", *flags, f"--tuned={tmp_path / 'best.toml'}")
    assert code == 2
    assert "two tuned files are for fedavg" in err


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_shards_share_out_every_run_once(tmp_path, parts):
    cells = EXPERIMENTS["table1"].cells(PRESETS["paper"]())
    jobs = command.jobs_of(cells, tmp_path)
    shared = [command.shard(jobs, part, parts) for part in range(1, parts + 1)]
    assert sorted(job.path for part in shared for job in part) == sorted(j.path for j in jobs)
    assert max(map(len, shared)) - min(map(len, shared)) <= 1


def test_the_first_seeds_come_first(tmp_path):
    cells = EXPERIMENTS["strategies"].cells(PRESETS["paper"]())
    seeds = [job.config.seed for job in command.jobs_of(cells, tmp_path)]
    assert seeds == sorted(seeds)
    assert len(seeds) == 2 * 7 * 3


def test_help_names_every_experiment(capsys):
    with pytest.raises(SystemExit):
        cli.main(["reproduce", "--help"])
    text = capsys.readouterr().out
    assert all(re.search(rf"\b{name}\b", text) for name in EXPERIMENTS)


def test_dry_run_estimates_and_runs_nothing(reproduce, tmp_path):
    code, out, _ = reproduce("strategies", f"--runs={tmp_path / 'runs'}", "--dry-run")
    assert code == 0
    assert re.search(r"14 runs are missing: about \d+:\d\d:\d\d ", out)
    assert not (tmp_path / "runs").exists()


def test_dry_run_names_what_cannot_begin(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECGRAD_DATA", str(tmp_path / "nothing"))
    flags = ["--preset=cpu", f"--runs={tmp_path / 'runs'}", "--shard=1/10", "--dry-run"]
    assert cli.main(["reproduce", "ratio", *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("2 runs are missing: about 0:00:00")
    assert all(line.startswith("cannot run cifar10-resnet8-fedavg-") for line in lines[1:])
    assert len(lines) == 3


def test_missing_data_refuse_the_runs_and_still_report(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECGRAD_DATA", str(tmp_path / "nothing"))
    flags = ["--preset=cpu", f"--runs={tmp_path}", "--shard=1/30", "--quiet"]
    code = cli.main(["reproduce", "ratio", *flags])
    err = capsys.readouterr().err
    assert code == 2
    assert "1 runs or measurements did not finish" in err
    assert "cifar10" in err
    assert (tmp_path / "report" / "report.md").is_file()


PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def blocks(tmp_path):
    """One block of every kind, with what HTML and Markdown must escape."""
    (tmp_path / "dot.png").write_bytes(PIXEL)
    return [
        Heading(1, "A <report>"),
        Paragraph("with *emphasis* & `code`"),
        Bullets(("one", "two")),
        Table(("", "paper", "ours"), (("a|b", "1.00", "supports"),)),
        Picture(tmp_path / "dot.png", "a dot"),
    ]


def test_the_page_needs_no_other_file(blocks):
    page = document.page("A <report>", blocks)
    assert "<title>A &lt;report&gt;</title>" in page
    assert "<em>emphasis</em> &amp; <code>code</code>" in page
    assert base64.b64encode(PIXEL).decode() in page
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert "url(" not in page
    assert r"a\|b" in document.markdown(blocks)


def test_the_page_in_a_browser(play, tmp_path):
    """Chromium lays out every heading, table and picture of a real report."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("chromium is not installed")
    report = play("strategies").report / "report.html"
    probe = tmp_path / "probe.html"
    script = (
        "<script>addEventListener('load', () => { document.title = JSON.stringify({"
        "headings: document.querySelectorAll('h2').length,"
        "tables: document.querySelectorAll('table').length,"
        "broken: [...document.images].filter(i => !i.naturalWidth).length,"
        "images: document.images.length,"
        "wide: document.documentElement.scrollWidth > innerWidth }) })</script>"
    )
    probe.write_text(report.read_text(encoding="utf-8").replace("</body>", f"{script}</body>"))
    page = _browse(chromium, probe, tmp_path)
    found = json.loads(re.search(r"<title>(\{.*?\})</title>", page)[1])
    assert found == {"headings": 4, "tables": 3, "broken": 0, "images": 2, "wide": False}


def _browse(chromium: str, path: Path, home: Path) -> str:
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={home / 'profile'}"]
    shown = subprocess.run(
        [chromium, *flags, "--window-size=1100,900", "--dump-dom", path.as_uri()],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return shown.stdout
