"""A report as blocks, written as Markdown or as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Heading:
    """A title; ``level`` 1 is the document's."""

    level: int
    text: str


@dataclass(frozen=True)
class Paragraph:
    """Running text, with ``*emphasis*`` and ```code```."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A list."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Rows under titles."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @staticmethod
    def of(rows: Collection[Mapping[str, str]]) -> Table:
        """From one or more rows with the same titles."""
        return Table(tuple(next(iter(rows))), tuple(tuple(row.values()) for row in rows))


@dataclass(frozen=True)
class Picture:
    """A PNG file beside the report."""

    path: Path
    text: str


Block = Heading | Paragraph | Bullets | Table | Picture


def markdown(blocks: Sequence[Block]) -> str:
    """Pictures are linked by their file name.

    >>> print(markdown([Heading(2, "A"), Table(("x", "y"), (("1", "2|3"),))]), end="")
    ## A
    <BLANKLINE>
    | x | y |
    |---|---|
    | 1 | 2\\|3 |
    """
    return "\n\n".join(map(_markdown, blocks)) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {block.text}"
    if isinstance(block, Paragraph):
        return block.text
    if isinstance(block, Bullets):
        return "\n".join(f"- {item}" for item in block.items)
    if isinstance(block, Picture):
        return f"![{block.text}]({block.path.name})"
    lines = [[cell.replace("|", r"\|") for cell in line] for line in (block.columns, *block.rows)]
    titles, *rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([titles, "|---" * len(block.columns) + "|", *rows])


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


def page(title: str, blocks: Sequence[Block]) -> str:
    """One HTML file with its pictures inside."""
    body = "\n".join(map(_html, blocks))
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


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{_inline(block.text)}</h{block.level}>"
    if isinstance(block, Paragraph):
        return f"<p>{_inline(block.text)}</p>"
    if isinstance(block, Bullets):
        return "<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in block.items) + "</ul>"
    if isinstance(block, Picture):
        data = base64.b64encode(block.path.read_bytes()).decode()
        text = html.escape(block.text)
        return (
            f'<figure><img alt="{text}" src="data:image/png;base64,{data}">'
            f"<figcaption>{_inline(block.text)}</figcaption></figure>"
        )
    return _html_table(block)


def _html_table(table: Table) -> str:
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.columns)
    titles = (
        f"<th{_class('words' if any(map(_is_words, cells)) else '')}>{_inline(title)}</th>"
        for title, cells in zip(table.columns, columns, strict=True)
    )
    lines = [f"<tr>{''.join(titles)}</tr>"]
    lines += ["<tr>" + "".join(map(_html_cell, row)) + "</tr>" for row in table.rows]
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


SHORT = 24
VERDICTS = ("supports", "contradicts", "undecided", "preliminary")


def _is_words(text: str) -> bool:
    return text not in ("", "not run") and bool(re.search(r"[A-Za-z]{2}", text))


def _class(names: str) -> str:
    return f' class="{names}"' if names else ""


def _html_cell(text: str) -> str:
    """Words to the left, numbers to the right, verdicts in colour.

    >>> _html_cell("supports"), _html_cell("+1.50")
    ('<td class="words short supports">supports</td>', '<td>+1.50</td>')
    """
    first = re.split("[ ,]", text)[0]
    verdict = first if first in VERDICTS and len(text) <= SHORT else ""
    short = "short" if len(text) <= SHORT else ""
    names = " ".join(filter(None, (f"words {short}".strip() if _is_words(text) else "", verdict)))
    return f"<td{_class(names)}>{_inline(text)}</td>"
