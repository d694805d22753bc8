"""Status page of a state in Postgres, opened by URL: each block equals the block of the same state in files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from tests.support import three_stage_pipeline
from tests.support.ui_page_client import HtmlTagChecker, fetch_page
from tests.support.why_command_fixtures import NOON, build_user_event_rows

from slackwater.cli.web_commands import load_page_sources
from slackwater.config import toml
from slackwater.state.postgres.store import PostgresStore
from slackwater.testing.local_pipeline import LocalPipeline
from slackwater.ui import pages
from slackwater.ui.page_model import PageModel, load_key, load_models
from slackwater.ui.page_server import serve_pages

OF_FILES = ("size", "top", "pace")  # sizes and times differ, and Postgres keeps only the latest commit


def comparable_page_blocks(seen: PageModel) -> dict[str, Any]:
    """Return the blocks of a page, without values that depend on the location and the time of the read."""
    blocks = {name: pages.block_as_data(name, seen) for name in pages.STAGE_BLOCKS if name not in OF_FILES}
    blocks["rows"]["epochs"] = blocks["watermark"]["behind"] = None
    # files keep expired rows until a merge, tables delete them at once
    stages = [
        {**s, "bytes": None, "rows": None, "open": s["open"] if s["kind"] != "join" else None} for s in blocks["stages"]
    ]
    return {**blocks, "stages": stages, "held": seen.top.held, "accounted": seen.top.accounted}


def test_page_blocks_of_every_stage_are_equal_for_postgres_and_files(postgres: Any, tmp_path: Path) -> None:
    url = postgres.database("ui_stages")
    file = three_stage_pipeline.run_three_stage_pipeline(tmp_path)
    options: dict[str, Any] = {
        "capture_losses": False,
        "clock_us": NOON,
        "store": lambda: PostgresStore(url, "public", "law"),
    }
    with LocalPipeline(toml.load(file), three_stage_pipeline.SCHEMA, **options) as test:
        orders = [
            *build_user_event_rows("u1", "9:00", "9:05", "10:30", partition="o-0"),
            *build_user_event_rows("u2", "9:50", partition="o-1"),
        ]
        test.pipe(
            {"orders": orders, "clicks": build_user_event_rows("u1", "9:00", "10:20")},
            partitions=three_stage_pipeline.PARTS,
        )
        test.quiet("45s")
        test.pipe({"clicks": build_user_event_rows("u1", "10:21")})
    (in_files,), (in_postgres,) = load_page_sources(str(tmp_path / "state")), load_page_sources(url)
    (whole, each), (other, others) = load_models(in_files, NOON), load_models(in_postgres, NOON)
    assert comparable_page_blocks(whole) == comparable_page_blocks(other)
    assert [comparable_page_blocks(s) for s in each] == [comparable_page_blocks(s) for s in others]
    for stage in ("sessions", "minutes"):
        one, two = (
            dataclasses.replace(load_key(w, {"user": "u1"}, NOON, stage), epoch=0) for w in (in_files, in_postgres)
        )
        assert one == two
    running = serve_pages([in_postgres], 0)
    try:
        for path in (
            "/",
            "/stage/sessions/",
            "/stage/seen/",
            "/stage/sessions/key?user=u2",
            "/stage/seen/ui/joins.json",
        ):
            response = fetch_page(running, path)
            assert response.status == 200, response.text
            if not path.endswith(".json"):
                HtmlTagChecker(response.text)
    finally:
        running.stop()
