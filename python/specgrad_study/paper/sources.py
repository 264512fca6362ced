"""Where a result was made: on which machine, from which commit, and in which report it stood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Source:
    """A machine with its software in one line, and the commit of the code.

    report: the earlier report that a result was taken from; empty for a run at hand
    """

    machine: str = UNKNOWN
    commit: str = UNKNOWN
    report: str = ""

    @staticmethod
    def of(facts: Any, report: str = "") -> Source:
        """From the facts that :func:`specgrad_fl.machine.report` collects."""
        try:
            packages = ", ".join(f"{k} {v}" for k, v in facts["packages"].items())
            gpus = f", {', '.join(facts['gpus'])}" if facts["gpus"] else ""
            machine = (
                f"{facts['cpu']}, {facts['cores']} cores{gpus}, {facts['platform']}, Python "
                f"{facts['python']}, {packages}, filter backends "
                f"{', '.join(facts['filter_backends'])}"
            )
            return Source(machine, facts.get("commit") or UNKNOWN, report)
        except (KeyError, TypeError, AttributeError):
            return Source(report=report)

    def __str__(self) -> str:
        taken = f", from {self.report}" if self.report else ""
        return f"commit {self.commit[:12]}{taken}: {self.machine}"
