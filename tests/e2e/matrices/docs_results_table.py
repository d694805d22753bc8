"""Update a table of results in a page of the docs row by row, and keep the rows of earlier runs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass
class DocsResultsTable:
    """A table that follows a mark in a page. A new row replaces the row with the same first `keys` cells."""

    mark: str
    head: Sequence[str]
    keys: int
    page: Path | None

    def has_row(self, *keys: str) -> bool:
        """Return whether the page has a row with these first cells."""
        return any(self._row_keys(row) == list(keys) for row in self._split_page()[1])

    def add_row(self, *cells: object) -> None:
        line = f"| {' | '.join(f'{c:,}' if isinstance(c, int) else str(c) for c in cells)} |"
        print(line, flush=True)
        if self.page is None:
            return
        before, former, rest = self._split_page()
        other_rows = [row for row in former if self._row_keys(row) != self._row_keys(line)]
        rows = [f"| {' | '.join(self.head)} |", f"|{'---|' * len(self.head)}", *other_rows, line]
        self.page.write_text(f"{before}\n" + "\n".join(rows) + "\n" + (f"\n{rest}\n" if rest else ""))

    def _row_keys(self, row: str) -> list[str]:
        return [cell.strip() for cell in row.split("|")[1 : self.keys + 1]]

    def _split_page(self) -> tuple[str, list[str], str]:
        """Split the page into the text up to the mark, the rows of the table without its head, and the rest."""
        if self.page is None:
            return "", [], ""
        before, mark, after = self.page.read_text().partition(f"<!-- {self.mark} -->\n")
        assert mark, f"{self.page} has no line <!-- {self.mark} -->"
        lines = after.splitlines()
        old = list(itertools.takewhile(lambda row: not row or row.startswith("|"), lines))
        return before + mark, [row for row in old if row][2:], "\n".join(lines[len(old) :])
