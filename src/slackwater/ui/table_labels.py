"""Tables that become lists on a narrow screen: each cell has the name of its column as an attribute.

<td>7</td>  ──▶  <td data-label="rows">7</td>, which the stylesheet puts before the value
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape, unescape

_TABLE = re.compile(r"<table\b.*?</table>", re.DOTALL)
_HEAD = re.compile(r"<thead>(.*?)</thead>", re.DOTALL)
_BODY = re.compile(r"<tbody>.*?</tbody>", re.DOTALL)
_NAME = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_CELL = re.compile(r"<(tr|td|th)\b(?! data-label)([^>]*)>")
_SPAN = re.compile(r'colspan="(\d+)"')
_TAG = re.compile(r"<[^>]*>")


def label_table_cells(page: str) -> str:
    """Add the column names to the table cells in rendered HTML.

    The values in the HTML must be escaped, so that a user's text cannot look like a tag.
    """
    return _TABLE.sub(lambda table: _labelled(table[0]), page)


def _labelled(table: str) -> str:
    head = _HEAD.search(table)
    if head is None:
        return table
    names = [unescape(_TAG.sub("", name)).strip() for name in _NAME.findall(head[1])]
    return _BODY.sub(lambda body: _body(body[0], names), table)


def _body(body: str, names: Sequence[str]) -> str:
    column = 0

    def labelled(cell: re.Match[str]) -> str:
        nonlocal column
        if cell[1] == "tr":
            column = 0
            return cell[0]
        span = _SPAN.search(cell[2])
        name = names[column] if column < len(names) and span is None else ""
        column += int(span[1]) if span else 1
        return f'<{cell[1]} data-label="{escape(name)}"{cell[2]}>'

    return _CELL.sub(labelled, body)
