"""User errors: one line, exit code 2, no traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib import metadata


class UserError(Exception):
    """One sentence: what is wrong, the value at fault, and the remedy.

    trace: where a user's own code failed, to be shown after the sentence
    """

    def __init__(self, sentence: str, trace: str = "") -> None:
        super().__init__(sentence)
        self.trace = trace


# packages that only some of the commands need, and the extra that brings each
EXTRAS = dict.fromkeys(("safetensors", "matplotlib", "sklearn", "PIL", "pyarrow"), "fl")
EXTRAS["flwr"] = "fl,flower"


def installing(extra: str) -> str:
    """The end of an error message: the command that installs an extra.

    >>> installing("fl")
    'run pip install ".[fl]" in the source tree'
    """
    return f'run pip install ".[{extra}]" in the source tree'


def not_installed(package: str) -> UserError:
    """Error for a missing optional package."""
    return UserError(f"{package} is not installed; {installing(EXTRAS[package])}")


def version(package: str) -> str:
    """Version of an installed package, or ``absent``."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


# more names than this are not listed
LISTED = 20


def suggest(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """The end of an error message: the nearest right name, in any case of letters, or all names.

    otherwise: said instead of a list where no name is near

    >>> suggest("fedporx", ["fedavg", "fedprox"]), suggest("FFT", ["fft", "lap"])
    ("did you mean 'fedprox'?", "did you mean 'fft'?")
    """
    names = {name.casefold(): name for name in sorted(known)}
    near = difflib.get_close_matches(word.casefold(), names, n=1)
    if near:
        return f"did you mean {names[near[0]]!r}?"
    if otherwise:
        return otherwise
    listed = ", ".join(list(names.values())[:LISTED])
    more = f", ... ({len(names)} in all)" if len(names) > LISTED else ""
    return f"choose one of {listed}{more}"


class DataError(UserError):
    """Data that cannot be used: what is wrong, and the remedy."""


class DataWarning(UserWarning):
    """Data that can be used, with something to know about them."""
