"""docs/reproduce.md: its tables are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from specgrad_study.paper.presets import PRESETS
from specgrad_study.paper.registry import EXPERIMENTS

TEXT = (Path(__file__).parents[3] / "docs" / "reproduce.md").read_text(encoding="utf-8")


def test_every_experiment_is_in_the_table():
    rows = re.findall(r"^\| `([\w-]+)` \| (.*?) \|", TEXT, flags=re.MULTILINE)
    assert {name for name, _ in rows} == set(EXPERIMENTS)
    for name, reference in rows:
        number = re.search(r"((Table|Figures?|Section) \w+|ours)", reference)[0]
        assert number.replace("Figures", "Figure") in EXPERIMENTS[name].reference


def test_the_table_of_presets_is_right():
    for line, values in (
        ("rounds, local epochs", lambda c: f"{c.rounds}, {c.epochs}"),
        ("clients, active", lambda c: f"{c.clients}, {c.active}"),
    ):
        shown = re.search(rf"^\| {line} \|(.*)\|$", TEXT, flags=re.MULTILINE)[1]
        expected = [values(PRESETS[name]().base) for name in ("paper", "cpu", "smoke")]
        assert [cell.strip() for cell in shown.split("|")] == expected
