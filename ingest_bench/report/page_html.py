"""Parts of all HTML pages: document, style sheet, script, tables and lists. A page loads nothing from elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent
# More columns of numbers do not fit a window of 1280 pixels in the normal font size.
_MAX_NORMAL_COLUMNS = 12
# The space between a number and its unit, which must not break.
_UNIT = re.compile(r"(?<=[0-9]) (?=(?:[KMGT]i?)?B\b|ms\b|s\b)")


def render_document(title: str, parts: Sequence[str], data: Mapping[str, Any] | None = None) -> str:
    """Render a page of these parts (HTML). With `data`, `page.js` draws its charts from it."""
    script = ""
    if data is not None:
        script = (
            f'<script type="application/json" id="data">{_to_json(data)}</script>\n'
            f"<script>\n{(_FOLDER / 'page.js').read_text(encoding='utf-8')}</script>\n"
        )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{(_FOLDER / 'page.css').read_text(encoding='utf-8')}</style>\n"
        "</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + f"\n</main>\n{script}</body>\n</html>\n"
    )


def render_section(title: str, content: str, anchor: str = "") -> str:
    """Render a section with its title; "" without content."""
    mark = f' id="{escape(anchor)}"' if anchor else ""
    return f"<section{mark}>\n<h2>{escape_breakable(title)}</h2>\n{content}\n</section>" if content else ""


def render_table(
    rows: Sequence[Sequence[str]], links: Mapping[int, Sequence[str]] | None = None, *, stacked: bool = False
) -> str:
    """Render rows as a table, the first as its head; columns with numbers are right-aligned.

    `links` maps the index of a column to an address for each row. In a narrow window the cells of a row of a `stacked`
    table stand below each other, each with its head: use it for sentences.
    """
    head, *body = rows
    is_numeric = [any(row[place][:1].isdigit() for row in body) for place in range(len(head))]
    marks = [' class="number"' if number else "" for number in is_numeric]

    def render_row(texts: Sequence[str], tag: str) -> str:
        return "".join(f"<{tag}{mark}>{text}</{tag}>" for text, mark in zip(texts, marks, strict=True))

    def add_links(number: int, row: Sequence[str]) -> list[str]:
        texts = [_UNIT.sub("&nbsp;", escape_breakable(cell)) for cell in row]
        for place, addresses in (links or {}).items():
            texts[place] = f'<a href="{escape(addresses[number])}">{texts[place] or "(no name)"}</a>'
        return texts

    heads = render_row([escape(cell) for cell in head], "th")
    if stacked:
        marks = [f'{mark} data-head="{escape(cell)}"' for mark, cell in zip(marks, head, strict=True)]
    content = "".join(f"<tr>{render_row(add_links(number, row), 'td')}</tr>\n" for number, row in enumerate(body))
    look = ' class="dense"' if len(head) > _MAX_NORMAL_COLUMNS else ' class="stacked"' if stacked else ""
    # The tab index lets keys scroll what is cut off.
    begin = f'<div class="wide" tabindex="0"><table{look}>\n<thead><tr>{heads}</tr></thead>'
    return f"{begin}\n<tbody>{content}</tbody></table></div>"


def render_list(texts: Sequence[str]) -> str:
    """Render a list; "" without items."""
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>" if texts else ""


def render_cards(cards: Sequence[tuple[str, str]], look: str = "cards") -> str:
    """Render small pictures next to each other, as (title, HTML); "" without any."""
    parts = (f"<div>\n<h3>{escape_breakable(title)}</h3>\n{content}\n</div>\n" for title, content in cards)
    return f'<div class="{look}">\n{"".join(parts)}</div>' if cards else ""


def escape_breakable(name: str) -> str:
    """Escape a text and allow line breaks between levels of a cell and ends of a range, but not within a number."""
    return re.sub(r",(?=[^0-9 ])|\+(?=[a-z])|\.\.(?=[0-9])", r"\g<0><wbr>", escape(name))


def _to_json(data: Mapping[str, Any]) -> str:
    """Format JSON that cannot end the script element, whatever names are in it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
