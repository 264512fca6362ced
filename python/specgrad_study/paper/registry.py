"""All experiments by name."""

from __future__ import annotations

from collections.abc import Sequence

from specgrad_fl.errors import RunError, suggest

from specgrad_study.paper import ablations, drift, mechanism, tables, timing
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
)
EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _ALL}


def find(names: Sequence[str]) -> list[Experiment]:
    """The experiments asked for; ``all`` stands for every one."""
    if "all" in names:
        return list(EXPERIMENTS.values())
    for name in names:
        if name not in EXPERIMENTS:
            raise RunError(f"there is no experiment {name!r}; {suggest(name, EXPERIMENTS)}")
    return [EXPERIMENTS[name] for name in dict.fromkeys(names)]
