"""Page of a join and of a window over a join: the content of each block."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.local_pipeline_script import MicroBatch, build_pipeline, run_local_script
from tests.support.why_command_fixtures import JOIN

from slackwater.cli.why import format_report
from slackwater.config import toml
from slackwater.config.window import Aggregation, Window
from slackwater.errors import StartError
from slackwater.state.files.store import FilesStore
from slackwater.ui import pages
from slackwater.ui.page_model import PageSource, load_key, load_model
from slackwater.ui.pages import PageLocation

S = 1_000_000
TYPES = {"user": "string", "price": "decimal(10,2)"}
SOURCES = ("orders", "payments")
ROWS = MicroBatch(
    {
        "orders": [{"ts": n * 20 * S, "user": f"u{n % 3}"} for n in range(9)] + [{"ts": 5, "user": None}],
        "payments": [{"ts": n * 20 * S + S, "user": f"u{n % 3}"} for n in range(9)] + [{"ts": 5, "user": None}],
    }
)
SUMS = [Aggregation(agg="count", as_="n")]


def test_join_page_does_not_show_windows_and_accounts_for_all_rows(tmp_path: Path) -> None:
    join = toml.loads(JOIN).transform.join
    assert join is not None
    run_local_script(join, [ROWS], TYPES, SOURCES, flush=False, state_dir=str(tmp_path))
    watched = PageSource(build_pipeline(join, SOURCES), "p.toml", FilesStore(tmp_path, "law"), format_report)
    seen = load_model(watched, 0)
    assert seen.closing is None
    # the order without a user is emitted without a match, but the payment without a user is not emitted
    assert (seen.rows.total.rows_in, seen.rows.total.used, seen.rows.total.keyless) == (20, 19, 1)
    assert seen.top.accounted
    assert "1 without a key" in seen.top.sentence
    content = pages.render_page(seen, PageLocation("")).decode()
    assert "This pipeline has no windows" in content
    with pytest.raises(StartError, match="a join has no windows"):
        load_key(watched, {"user": "u1"}, 0)


def test_page_shows_the_windows_of_a_stage_after_a_join(tmp_path: Path) -> None:
    join = toml.loads(JOIN).transform.join
    assert join is not None
    join = join.model_copy(update={"kind": "inner"})
    after = Window(
        kind="tumbling", duration_ms=60_000, max_groups_per_window=99, group_by=["left_user"], aggregations=SUMS
    )
    options = {"flush": False, "state_dir": str(tmp_path), "downstream": after}
    run_local_script(join, [ROWS, ROWS], TYPES, SOURCES, **options)  # type: ignore[arg-type]
    watched = PageSource(
        build_pipeline(join, SOURCES, downstream=after), "p.toml", FilesStore(tmp_path, "law"), format_report
    )
    seen = load_model(watched, 0)
    assert seen.top.accounted
    assert seen.closing is not None
    assert seen.closing.what == "keys in windows"
    assert seen.closing.total > 0
    one = load_key(watched, {"left_user": "u1"}, 0)
    assert one.bars
    assert one.told[0].endswith(f"key left_user=u1: {len(one.bars)} open windows")
    assert pages.render("key.html", pipeline="law", stage=None, key=one)
