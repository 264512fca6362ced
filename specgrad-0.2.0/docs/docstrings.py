"""Turns our docstrings into Markdown for the site: examples as code, arguments as a list."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ARGUMENT = re.compile(r"^((?:\*{0,2}\w+)(?:, \w+)*): (.+)$")
_ROLE = re.compile(r":\w+:`~?([^`]+)`")


def as_markdown(text: str) -> str:
    """A docstring as Markdown.

    >>> print(as_markdown("Adds.\\n\\nx, y: numbers\\n    of any size\\n\\n>>> 1 + 1\\n2"))
    Adds.
    <BLANKLINE>
    - **x, y**: numbers
        of any size
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    blocks = re.split(r"\n\s*\n", text)
    return _ROLE.sub(r"`\1`", "\n\n".join(_block(block) for block in blocks))


def _block(block: str) -> str:
    if block.startswith(">>>"):
        return f"```pycon\n{block}\n```"
    if not _ARGUMENT.match(block.split("\n", 1)[0]):
        return block
    return "\n".join(_ARGUMENT.sub(r"- **\1**: \2", line) for line in block.split("\n"))


class OurDocstrings(griffe.Extension):
    """Rewrites every docstring once it is loaded."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
