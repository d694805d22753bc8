"""A table of results in a page of the docs: rows come one by one, and those of former runs stay."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Table:
    """Rows of a table in a page, behind a mark; a row replaces the one whose first cells, `keys` of them, are the same."""

    mark: str
    head: Sequence[str]
    keys: int
    page: Path | None

    def has(self, *keys: str) -> bool:
        """Whether the page has a row with these first cells."""
        return any(self._keys(row) == list(keys) for row in self._parted()[1])

    def add(self, *cells: object) -> None:
        line = f"| {' | '.join(f'{c:,}' if isinstance(c, int) else str(c) for c in cells)} |"
        print(line, flush=True)
        if self.page is None:
            return
        before, former, rest = self._parted()
        kept = [row for row in former if self._keys(row) != self._keys(line)]
        rows = [f"| {' | '.join(self.head)} |", f"|{'---|' * len(self.head)}", *kept, line]
        self.page.write_text(f"{before}\n" + "\n".join(rows) + "\n" + (f"\n{rest}\n" if rest else ""))

    def _keys(self, row: str) -> list[str]:
        return [cell.strip() for cell in row.split("|")[1 : self.keys + 1]]

    def _parted(self) -> tuple[str, list[str], str]:
        """The page: up to the mark, the rows of the table without its head, and what stands behind them."""
        if self.page is None:
            return "", [], ""
        before, mark, after = self.page.read_text().partition(f"<!-- {self.mark} -->\n")
        assert mark, f"{self.page} has no line <!-- {self.mark} -->"
        lines = after.splitlines()
        old = list(itertools.takewhile(lambda row: not row or row.startswith("|"), lines))
        return before + mark, [row for row in old if row][2:], "\n".join(lines[len(old) :])
