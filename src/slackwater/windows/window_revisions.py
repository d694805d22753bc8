"""Record how many times each window of a pane was emitted. If windows overlap, a pane may have a note for each of its windows.

    window 60, hop 20          a late row in pane 40 corrects the two closed windows
    [0 ─────────── 60)         emitted for the 2nd time         pane 40 notes: 0 and 20 were emitted again
         [20 ─────────── 80)   emitted for the 2nd time
              [40 ─────────── 100)  closes later: emitted for the 1st time

The pane of a tumbling window is the window itself: `__rev` is the revision, and there are no notes. A pane of
hopping windows has a list of notes in `__out`. There is one note for each window that was emitted after the pane had
changed: `nth << 40 | (revision + 1) << 1 | holds`. `nth` is the position of the window among the windows of the pane.
`holds` is 1 if the pane has not changed since. The revision of a window is the largest in the notes of its panes.

Closing a window does not write to the state, so the emission at its close is implied (`reopen`), not noted. A pane that
a late row created after the close was not part of that emission; its revision is -1.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from slackwater.windows.session_intervals import Bools
from slackwater.windows.state_rows import Int64s

_NTH, _REVISION = 1 << 40, 1 << 1
NOT_EMITTED = -1  # the revision of a window that was not emitted at its close, because all its rows came later

NOTE_COLUMNS = {"__row": pl.Int64(), "__start": pl.Int64(), "__rev": pl.Int64(), "__holds": pl.Boolean()}


def read_revisions(panes: pl.DataFrame, first: Int64s, hop: int) -> pl.DataFrame:
    """Read the notes of panes: `__row` (position of the pane), `__start` (of the window), `__rev` and `__holds`.

    `first` is the start of the earliest window of each pane, and `hop` the distance between windows, in µs.
    """
    row = np.repeat(np.arange(panes.height), panes["__out"].list.len().to_numpy())
    note = panes["__out"].explode().drop_nulls().to_numpy()
    columns = (row, first[row] + note // _NTH * hop, note % _NTH // _REVISION - 1, note % _REVISION == 1)
    return pl.DataFrame(dict(zip(NOTE_COLUMNS, columns, strict=True)), schema=NOTE_COLUMNS)


def write_revisions(panes: pl.DataFrame, notes: pl.DataFrame, first: Int64s, hop: int) -> pl.DataFrame:
    """Replace the notes of panes; `notes` has the columns that `read_revisions` returns.

    If a window has several notes, the largest revision wins.
    """
    row, start, rev = (notes[c].to_numpy() for c in ("__row", "__start", "__rev"))
    nth = (start - first[row]) // hop
    note = nth * _NTH + (rev + 1) * _REVISION + notes["__holds"].to_numpy()
    order = np.lexsort((note, row))
    row, nth, note = row[order], nth[order], note[order]
    newest = np.append((row[1:] != row[:-1]) | (nth[1:] != nth[:-1]), True)[: len(row)]
    lists = pl.DataFrame({"__row": row[newest], "__out": note[newest]}).with_columns(pl.col("__row").set_sorted())
    lists = lists.group_by("__row", maintain_order=True).agg("__out")
    if lists.height < panes.height:
        bare = np.setdiff1d(np.arange(panes.height), lists["__row"].to_numpy(), assume_unique=True)
        nothing = pl.DataFrame({"__row": bare}).with_columns(pl.lit([], pl.List(pl.Int64)).alias("__out"))
        lists = pl.concat([lists, nothing]).sort("__row")
    return panes.with_columns(lists["__out"])


def mark_panes_changed(panes: pl.DataFrame, touched: Bools) -> pl.DataFrame:
    """Clear `holds` in all notes of the `touched` panes: they have new rows, so their results in the target are outdated."""
    undone = pl.col("__out") - pl.col("__out") % _REVISION
    return panes.with_columns(pl.when(pl.Series(touched)).then(undone).otherwise(pl.col("__out")).alias("__out"))


def record_missed_emissions(panes: pl.DataFrame, new: Bools, first: Int64s, closed: int, hop: int) -> pl.DataFrame:
    """Note in each `new` pane the windows that closed before the pane was created.

    `closed` is the start of the last closed window.
    """
    positions = np.flatnonzero(new & (first <= closed))
    if not len(positions):
        return panes
    times = (np.minimum(closed, panes["__start"].to_numpy()[positions]) - first[positions]) // hop + 1
    row = np.repeat(positions, times)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times)
    rows = {"__row": row, "__start": first[row] + nth * hop, "__rev": NOT_EMITTED, "__holds": False}
    return write_revisions(
        panes, pl.concat([read_revisions(panes, first, hop), pl.DataFrame(rows, schema=NOTE_COLUMNS)]), first, hop
    )
