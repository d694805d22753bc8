"""The examples of the pages under docs/stages run, and give what the pages say."""

from __future__ import annotations

from tests.support.doc_pages import block

import slackwater as sw

DEDUP = "docs/stages/dedup.md"


def test_the_config_of_the_page_on_dedup_is_valid() -> None:
    pipeline = sw.loads(block("toml", page=DEDUP), "dedup.toml")
    assert pipeline.transform.dedup == sw.Dedup(
        keys=["payment_id"], keep="first", within="10m", event_time_column="ts", lateness="1m"
    )


def test_the_python_of_the_page_on_dedup_runs() -> None:
    exec(block("python", page=DEDUP), {})
