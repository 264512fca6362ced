"""What a user can set right: shown as one sentence, with exit code 2 and no traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
    """The end of a refusal: how to get an extra.

    >>> installing("fl")
    'pip install "specgrad[fl]" (in its source tree: pip install ".[fl]")'
    """
    return f'pip install "specgrad[{extra}]" (in its source tree: pip install ".[{extra}]")'


def not_installed(package: str) -> UserError:
    """The refusal of what needs one of the optional packages."""
    return UserError(f"{package} is not installed; {installing(EXTRAS[package])}")


def suggest(word: str, known: Iterable[str]) -> str:
    """The end of a refusal: the nearest right name, or all of them.

    >>> suggest("fedporx", ["fedavg", "fedprox"])
    "did you mean 'fedprox'?"
    """
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(names)}"


class DataError(UserError):
    """One sentence: what is wrong with the data, and the remedy."""


class DataWarning(UserWarning):
    """The data can be used, but not everything about them is as it should be."""
