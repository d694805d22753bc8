"""Round trips of state files."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from slackwater.storage.arrow_files import read_arrow, write_arrow


def test_empty_list_columns_keep_their_alignment_in_sorted_segments(tmp_path: Path) -> None:
    """Polars returns such a column as a slice beyond the end of its buffer, and the Arrow writer trusts the offset."""
    lists = pl.Series("set", [[1.0], [2.0], [3.0], []], dtype=pl.List(pl.Float64)).slice(3).list.sort()
    frame = pl.DataFrame(
        {"set": lists, "nothing": pl.Series([None], dtype=pl.List(pl.Int64)), "why": ["late"], "u": ["a"]}
    )
    _, checksum = write_arrow(tmp_path / "s.arrow", frame)
    assert read_arrow(tmp_path / "s.arrow", checksum).to_dicts() == frame.to_dicts()
