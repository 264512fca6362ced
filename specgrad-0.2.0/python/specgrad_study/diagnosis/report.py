"""Report of a diagnosis: a table by layer, the theory's numbers, ratios to train with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from specgrad_fl import toml
from specgrad_fl.config import Config
from specgrad_fl.errors import ConfigError
from specgrad_fl.results import text_table

from specgrad_study.diagnosis import theory as theorem
from specgrad_study.diagnosis.collect import FULL, SOURCES, Checkpoint
from specgrad_study.diagnosis.recommend import Recommendation, recommend
from specgrad_study.diagnosis.snapshot import Snapshot, band_shares, mean_bands
from specgrad_study.diagnosis.theory import LEAST_ROUNDS

NO_BOUND = f"the theorem begins at {LEAST_ROUNDS} rounds"
NAMES = {"full": "a full pass", "batch": "one batch", "update": "local updates"}


def _snapshots(checkpoints: Sequence[Checkpoint], source: str) -> list[Snapshot]:
    """Snapshots by one gradient source, where it was measured."""
    return [snapshot for each in checkpoints if (snapshot := each.by(source))]


@dataclass(frozen=True)
class Diagnosis:
    """Measured rounds, and the ratios that follow from them.

    title: what was diagnosed
    share, rho_limit: what is asked of the recommendation
    source: of the gradients, see :mod:`specgrad_study.diagnosis.collect`
    """

    title: str
    checkpoints: list[Checkpoint]
    share: float = 0.5
    rho_limit: float = 0.5
    source: str = FULL

    @cached_property
    def recommendation(self) -> Recommendation:
        """The ratio for each layer."""
        try:
            return recommend(self.snapshots, share=self.share, rho_limit=self.rho_limit)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    @cached_property
    def snapshots(self) -> list[Snapshot]:
        return _snapshots(self.checkpoints, self.source)

    @cached_property
    def by_source(self) -> dict[str, dict[str, list[float]]]:
        """Bands by every source of the gradient that was measured, means over layers and rounds."""
        held = {source: _snapshots(self.checkpoints, source) for source in SOURCES}
        return {
            source: {
                "energy": mean_bands(snapshots).tolist(),
                "share": band_shares(snapshots).tolist(),
            }
            for source, snapshots in held.items()
            if snapshots
        }

    @property
    def band_shares(self) -> list[float]:
        return self.by_source[self.source]["share"]

    def left(self, what: str) -> dict[str, float]:
        """For each tried filter the share of one field of :class:`Effect`, the mean over rounds."""
        shares: dict[str, list[float]] = {}
        for checkpoint in self.checkpoints:
            for label, effect in checkpoint.effects.get(self.source, {}).items():
                if (share := getattr(effect, what)) is not None:
                    shares.setdefault(label, []).append(share)
        return {label: sum(v) / len(v) for label, v in shares.items()}

    def table(self) -> list[dict[str, Any]]:
        """One row for each measured layer, means over rounds, kappa their minimum."""
        ratios = self.recommendation.as_table()
        rows = []
        for name, first in self.snapshots[0].layers.items():
            if not first.edges:
                continue
            layers = [snapshot.layers[name] for snapshot in self.snapshots]
            kappas = [k for layer in layers if (k := layer.kappa()) is not None]
            taus = [layer.tau for layer in layers if layer.tau is not None]
            lowest = None
            if first.has_bands and any(layer.total > 0 for layer in layers):
                lowest = float(sum(b.bands()[0] for b in layers) / sum(b.total for b in layers))
            rows.append(
                {
                    "layer": name,
                    "d": first.d,
                    "cutoff": first.cutoff,
                    "disagreement": sum(layer.total for layer in layers) / len(layers),
                    "lowest_band": lowest,
                    "kappa": min(kappas, default=None) if first.filtered else None,
                    "tau": max(taus, default=None),
                    "lambda": first.lambda_ if first.filtered else None,
                    "ratio": ratios.get(name),
                }
            )
        return rows

    def ratios_toml(self) -> str:
        """The recommendation as a configuration file for ``--filter-ratios`` or ``--config``."""
        about = "# share of each layer's spectrum to remove; 0 leaves the layer alone"
        return about + toml.written({"filter_ratios": self.recommendation.as_table()})


def mean_similarity(checkpoint: Checkpoint) -> dict[str, float | None]:
    """Mean CKA between different local models by stage; ``None`` where it is undefined."""
    means: dict[str, float | None] = {}
    for stage, matrix in checkpoint.similarity.items():
        entries = [v for i, row in enumerate(matrix) for j, v in enumerate(row) if i != j]
        known = [v for v in entries if v is not None]
        means[stage] = sum(known) / len(known) if len(known) == len(entries) > 0 else None
    return means


def theory(
    checkpoints: Sequence[Checkpoint],
    config: Config | None = None,
    samples: int = 0,
    smoothness: float | None = None,
) -> dict[str, Any]:
    """Budgets, and the bounds as functions of ``L``; all of it diagnostic.

    samples: of a client, for the number of local steps; smoothness: a value for ``L``. The gap
    ``F(w_0) - F*`` is the loss at the first measured round: cross-entropy is never below 0.
    """
    budget = theorem.budget([each.snapshot for each in checkpoints])
    report: dict[str, Any] = {
        "label": "diagnostic",
        "kappa": budget.kappa,
        "rho": budget.rho,
        "rho_by_round": {str(c.round): c.snapshot.rho for c in checkpoints},
        "delta_high_squared": {"measured": budget.measured, "certified": budget.certified},
        "delta_filtered_squared": budget.delta_filtered,
        "delta_residual_squared": budget.delta_residual,
        "parseval_error": max(c.snapshot.parseval_error for c in checkpoints),
    }
    noises = [c.noise for c in checkpoints if c.noise is not None]
    gap = checkpoints[0].loss
    if config is None or not noises or budget.rho is None or gap is None:
        return report
    noise = theorem.Noise(max(n.local for n in noises), max(n.averaged for n in noises))
    report["noise"] = {"sigma_loc_squared": noise.local, "sigma_bar_squared": noise.averaged}
    if config.rounds < LEAST_ROUNDS:
        return report | {"bounds": None, "why_no_bounds": NO_BOUND}
    steps = config.epochs * math.ceil(samples / config.batch_size)
    sampled: dict[str, Any] = {"clients": config.clients, "active": config.active}
    # the noise of a mean over all clients, and not over those that were measured
    measured = max(len(each.clients) for each in checkpoints)
    whole = replace(noise, averaged=noise.averaged * measured / config.clients)
    given: dict[str, Any] = {"gap": gap, "rho": budget.rho, "delta_high": budget.measured}
    given |= {"rounds": config.rounds, "steps": steps}
    bounds = {
        "full_participation": theorem.theorem_bound(**given, noise=whole),
        "partial_participation": theorem.partial_bound(**given, noise=noise, **sampled),
    }
    at = {} if smoothness is None else {"smoothness": smoothness}
    return report | {
        "bounds": {
            "label": "diagnostic: slope L + constant, with the smoothness L",
            "gap": gap,
            "rounds": config.rounds,
            "steps": steps,
            "q_M": theorem.sampling_factor(**sampled),
            **at,
            **{
                name: vars(bound) | ({"bound": bound.at(smoothness)} if smoothness else {})
                for name, bound in bounds.items()
            },
        }
    }


def as_json(diagnosis: Diagnosis, theory: dict[str, Any]) -> dict[str, Any]:
    """Everything that was found, without the raw spectra; see :func:`theory`."""
    return {
        "title": diagnosis.title,
        "source": diagnosis.source,
        "bands": diagnosis.by_source[diagnosis.source],
        "bands_by_source": diagnosis.by_source,
        "layers": diagnosis.table(),
        "left_after_filter": diagnosis.left("disagreement"),
        "mean_gradient_after_filter": diagnosis.left("mean_gradient"),
        "theory": theory,
        "recommendation": {
            "share": diagnosis.share,
            "rho_limit": diagnosis.rho_limit,
            "rho": diagnosis.recommendation.rho,
            "layers": [vars(choice) for choice in diagnosis.recommendation.choices],
        },
        "rounds": [
            {
                "round": c.round,
                "clients": c.clients,
                "loss": c.loss,
                "disagreement": sum(layer.total for layer in c.snapshot.layers.values()),
                _cosine_name(c): c.cosine,
                "mean_similarity": mean_similarity(c),
                "sharpness": c.sharpness,
            }
            for c in diagnosis.checkpoints
        ],
    }


def _cosine_name(checkpoint: Checkpoint) -> str:
    """Gradient files have no local models, so what is compared there are the gradients."""
    from_files = checkpoint.cosine is not None and not checkpoint.similarity
    return "cosine_of_gradients" if from_files else "cosine_of_updates"


def as_text(diagnosis: Diagnosis) -> str:
    """The table by layer, and what is common to all, for people."""
    rows = []
    for row in diagnosis.table():
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:g}" if row["ratio"] else "leave"
        shares = (_percent(row["lowest_band"]), _percent(row["kappa"]))
        rows.append((row["layer"], f"{row['d']:,}", str(row["cutoff"] or "-"), *shares, ratio))
    names = ("layer", "d", "cutoff", "lowest band", "kappa", "ratio")
    lines = text_table(rows, names, str.rjust)
    budget = theorem.budget(diagnosis.snapshots)
    chosen = diagnosis.recommendation
    kept = sum(layer.high() for s in diagnosis.snapshots for layer in s.filtered)
    whole = sum(s.filtered_disagreement for s in diagnosis.snapshots)
    others = ", ".join(
        f"{each['share'][0]:.1%} by {NAMES[source]}"
        for source, each in diagnosis.by_source.items()
        if source != diagnosis.source
    )
    lines += [
        "",
        f"{_percent(diagnosis.band_shares[0])} of the disagreement lies in the lowest tenth of "
        "the spectrum (10% if it were spread evenly)" + (f"; {others}" if others else ""),
        f"the filter removes {_percent(budget.rho)} of the mean gradient (rho), and leaves "
        f"{_percent(kept / whole if whole else None)} of the disagreement in its layers",
        f"the recommended ratios remove at least {_percent(diagnosis.share)} of the disagreement "
        f"in {sum(r > 0 for r in chosen.ratios)} of {len(chosen.ratios)} layers, and "
        f"{_percent(chosen.rho)} of the mean gradient",
    ]
    for checkpoint in diagnosis.checkpoints:
        if checkpoint.cosine is not None:
            what = _cosine_name(checkpoint).replace("_", " ")
            lines.append(f"round {checkpoint.round}: mean {what} {checkpoint.cosine:.3f}")
        if checkpoint.similarity:
            means = mean_similarity(checkpoint).items()
            told = [f"{k} {'undefined' if v is None else f'{v:.2f}'}" for k, v in means]
            lines[-1] += f"; CKA of local models: {', '.join(told)}"
        if checkpoint.sharpness:
            told = [f"{label} {value:.1f}" for label, value in checkpoint.sharpness.items()]
            lines.append(f"round {checkpoint.round}: sharpness for steps with {', '.join(told)}")
    return "\n".join(lines)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
