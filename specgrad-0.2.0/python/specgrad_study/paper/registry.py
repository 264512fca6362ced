"""All experiments by name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from specgrad_fl.errors import RunError, suggest

from specgrad_study.paper import ablations, drift, mechanism, ours, tables, timing
from specgrad_study.paper.experiment import Experiment

_ALL = (
    tables.TABLE1,
    tables.TABLE2,
    ablations.STRATEGIES,
    ablations.LAYERS,
    ablations.ORDERS,
    ablations.CENTRALISED,
    tables.NEAR_IID,
    timing.TIME,
    tables.FEATURE_SHIFT,
    tables.FEMNIST,
    drift.SPECTRAL_BIAS,
    tables.SETTINGS,
    tables.CURVES,
    drift.CKA,
    ablations.RATIO,
    tables.SUPPLEMENT,
    mechanism.EXPERIMENT,
    ours.TUNED,
    ours.FULL_SIZE,
    ours.WHY,
    ours.RELATIVES,
    ours.ADAPTIVE,
)
EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _ALL}


_ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x")


def _number(name: str) -> str:
    """A table or figure of the paper in one spelling; empty for other names.

    >>> _number("Table III"), _number("table-3"), _number("fig7"), _number("orders")
    ('table3', 'table3', 'figure7', '')
    """
    match = re.fullmatch(r"(tab|fig)[a-z]*?[ ._-]?(\d+|[ivx]+)", name.lower())
    if match is None:
        return ""
    kind, number = {"tab": "table", "fig": "figure"}[match[1]], match[2]
    return f"{kind}{_ROMAN.index(number) + 1 if number in _ROMAN else number}"


# names of experiments by table or figure; the supplement counts its own
NUMBERS = {
    _number(found): experiment.name
    for experiment in _ALL
    for found in re.findall(r"(?:Table|Figure) \w+\b(?! of)", experiment.reference)
}


def find(names: Sequence[str]) -> list[Experiment]:
    """The experiments asked for, by name or number in the paper; ``all`` stands for every one."""
    if "all" in names:
        return list(EXPERIMENTS.values())
    found = {}
    for given in names:
        number = _number(given)
        name = NUMBERS.get(number, given)
        if name not in EXPERIMENTS:
            hint = f"choose one of {', '.join(NUMBERS)}" if number else suggest(name, EXPERIMENTS)
            raise RunError(f"there is no experiment {given!r}; {hint}")
        found[name] = EXPERIMENTS[name]
    return list(found.values())
