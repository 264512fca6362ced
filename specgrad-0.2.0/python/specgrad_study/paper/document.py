"""A report as pieces, written as Markdown or as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Piece:
    """A piece of a report in both languages."""

    markdown: str
    html: str


class Heading(Piece):
    """A title; ``level`` 1 is the document's."""

    def __init__(self, level: int, text: str) -> None:
        super().__init__(f"{'#' * level} {text}", f"<h{level}>{_inline(text)}</h{level}>")


class Paragraph(Piece):
    """Running text, with ``*emphasis*`` and ```code```."""

    def __init__(self, text: str) -> None:
        super().__init__(text, f"<p>{_inline(text)}</p>")


class Bullets(Piece):
    """A list."""

    def __init__(self, items: Sequence[str]) -> None:
        points = "".join(f"<li>{_inline(item)}</li>" for item in items)
        super().__init__("\n".join(f"- {item}" for item in items), f"<ul>{points}</ul>")


class Picture(Piece):
    """A PNG file beside the report: linked by its name in Markdown, inside the page in HTML."""

    def __init__(self, path: Path, text: str) -> None:
        data = base64.b64encode(path.read_bytes()).decode()
        super().__init__(
            f"![{text}]({path.name})\n\n*{text}*",
            f'<figure><img alt="{html.escape(text)}" src="data:image/png;base64,{data}">'
            f"<figcaption>{_inline(text)}</figcaption></figure>",
        )


class Table(Piece):
    """Rows under titles.

    >>> print(Table(("x", "y"), (("1", "2|3"),)).markdown)
    | x | y |
    |---|---|
    | 1 | 2\\|3 |
    """

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        lines = [[cell.replace("|", r"\|") for cell in line] for line in (columns, *rows)]
        first, *others = [f"| {' | '.join(line)} |" for line in lines]
        titles = ""
        for title, *cells in zip(columns, *rows, strict=True):
            name = ' class="words"' if any(map(WORD.search, cells)) else ""
            titles += f"<th{name}>{_inline(title)}</th>"
        body = "".join("<tr>" + "".join(map(_html_cell, row)) + "</tr>" for row in rows)
        super().__init__(
            "\n".join([first, "|---" * len(columns) + "|", *others]),
            f'<div class="wide"><table><tr>{titles}</tr>{body}</table></div>',
        )

    @staticmethod
    def of(rows: Sequence[Mapping[str, str]], titles: Sequence[str]) -> Table:
        """Choose columns by title from rows by title."""
        return Table(titles, [[row[title] for title in titles] for row in rows])


def markdown(pieces: Sequence[Piece]) -> str:
    """One text; pictures are files beside it."""
    return "\n\n".join(piece.markdown for piece in pieces) + "\n"


STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #8886; padding-bottom: .2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #8884; text-align: right; }
th { border-bottom: 2px solid #8888; vertical-align: bottom; }
td:first-child, th:first-child, .words { text-align: left; }
td.short { white-space: nowrap; }
td.supports { color: #1a7f37; font-weight: 600; }
td.contradicts { color: #c62828; font-weight: 600; }
td.undecided, td.preliminary { color: #8a6d00; font-weight: 600; }
img { max-width: 100%; background: #fff; border-radius: 4px; }
figure { margin: 1rem 0; } figcaption { font-size: .9rem; opacity: .8; }
code { font-size: .9em; background: #8882; padding: 0 .25em; border-radius: 3px; }
"""


def page(title: str, pieces: Sequence[Piece]) -> str:
    """One HTML file with its pictures inside."""
    body = "\n".join(piece.html for piece in pieces)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width">\n'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


def _inline(text: str) -> str:
    """Escaped text with emphasis and code.

    >>> _inline("a < b, *so* `x`")
    'a &lt; b, <em>so</em> <code>x</code>'
    """
    escaped = html.escape(text, quote=False)
    escaped = re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped)
    return re.sub(r"\*([^*\n]+)\*", r"<em>\1</em>", escaped)


SHORT = 24
VERDICTS = ("supports", "contradicts", "undecided", "preliminary")
WORD = re.compile("[A-Za-z]{2}")


def _html_cell(text: str) -> str:
    """Words to the left, numbers to the right, verdicts in colour.

    >>> _html_cell("supports"), _html_cell("+1.50")
    ('<td class="words short supports">supports</td>', '<td>+1.50</td>')
    """
    if not WORD.search(text):
        return f"<td>{_inline(text)}</td>"
    names = "words"
    if len(text) <= SHORT:
        first = re.split("[ ,]", text)[0]
        names += f" short {first}" if first in VERDICTS else " short"
    return f'<td class="{names}">{_inline(text)}</td>'
