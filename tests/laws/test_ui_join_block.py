"""Compare the join block of the page with an oracle that derives waiting and matched rows from the input alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.laws.generators.join_scenarios import (
    AROUND,
    KINDS,
    SOURCES,
    S,
    draw_join_script,
    expected_join_state,
    load_join_page,
)
from tests.support.case_selection import select_cases
from tests.support.local_pipeline_script import MicroBatch

from slackwater.ui import pages
from slackwater.ui.pages import PageLocation


@pytest.mark.parametrize("seed", select_cases(range(20), keep=2))
@pytest.mark.parametrize("kind", KINDS)
def test_join_block_matches_the_buffers_of_the_oracle(tmp_path: Path, kind: str, seed: int) -> None:
    script = draw_join_script(seed)
    seen, _ = load_join_page(kind, script, tmp_path)
    block, (held, watermark, pairs) = seen.joins, expected_join_state(script)
    assert block is not None
    assert (block.watermark_us, block.pairs) == (watermark, pairs)
    assert len({age.to_us - age.from_us for side in block.sides for age in side.ages}) <= 1
    for side, rows in zip(block.sides, held, strict=True):
        waiting = [r for r in rows if watermark is None or r["ts"] + AROUND >= watermark]
        assert side.rows == len(waiting) == sum(age.rows for age in side.ages)
        assert side.expires_us == (None if watermark is None else watermark - AROUND)
        assert side.entered == len(rows)
        for age in side.ages:
            inside = [r for r in waiting if age.from_us <= r["ts"] < age.to_us]
            assert age.rows == len(inside)
            assert age.matched == (sum(r["found"] for r in inside) if side.outer else None)
        if side.outer:
            assert side.matched == sum(r["found"] for r in rows)
            assert side.share == (side.matched / len(rows) if rows else None)
        counts = Counter(r["user"] for r in waiting)
        if not counts:
            assert side.hot_key is None
        else:
            assert side.hot_key is not None
            assert side.hot_key.rows == max(counts.values()) == counts[side.hot_key.key["user"]]
        assert (side.source, side.keep_us) == (SOURCES[0 if side.side == "left" else 1], AROUND)
    content = pages.render_page(seen, PageLocation("")).decode()
    assert "ows that wait for partners on each side" in content


def test_evicted_rows_are_excluded_from_the_join_block(tmp_path: Path) -> None:
    script = [
        MicroBatch({"orders": [{"ts": n * S + m, "user": "a"} for m in range(4)], "payments": []}) for n in range(5)
    ]
    seen, _ = load_join_page("left", script, tmp_path, max_rows_per_key=7, on_state_cap="drop_oldest")
    assert seen.joins is not None
    left_side, right_side = seen.joins.sides
    assert (left_side.entered, left_side.evicted, left_side.rows, right_side.rows) == (20, 13, 7, 0)
    assert left_side.hot_key is not None and left_side.hot_key.rows == 7
    assert seen.joins.watermark_us is None
    assert seen.top.accounted
