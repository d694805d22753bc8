"""Late rows on the UI page: replayed rows do not count as late, and other late rows link to their dead letters."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.local_pipeline_script import DeadLetterReplay, MicroBatch, run_local_script
from tests.support.ui_dead_letter_pipeline import run_pipeline_with_late_dead_letter
from tests.support.ui_page_client import fetch_page
from tests.support.ui_pipeline_states import DAY, S, open_page_source, run_two_source_pipeline, write_two_source_config

from slackwater.config.window import Aggregation, Window
from slackwater.state.files.store import FilesStore
from slackwater.ui.blocks.row_accounting import build_accounting
from slackwater.ui.page_server import serve_pages

MS = 1000


def test_replayed_rows_no_longer_count_as_late(tmp_path: Path) -> None:
    """Count a late row as replayed after the replay.

    gap 3     [0 ── 2]     [8 ── 9]            both are stored, and gone from the state
    late                ● 5                    is late, then applied
    """
    window = Window(
        kind="session",
        gap_ms=3,
        max_session_duration_ms=20,
        group_by=["u"],
        aggregations=[Aggregation(agg="count", as_="n")],
        late_data="dlq",
    )

    def rows_at_ms(*times: int) -> MicroBatch:
        return MicroBatch({"a": [{"ts": t * MS, "u": "a"} for t in times]})

    script = [rows_at_ms(0, 2, 8, 9), rows_at_ms(100), rows_at_ms(5), DeadLetterReplay()]
    for number, late, replayed in ((3, 1, 0), (4, 0, 1)):
        home = tmp_path / str(number)
        run_local_script(window, script[:number], {"u": "string"}, state_dir=str(home), flush=False)
        with FilesStore(home, "law").peek() as snapshot:
            assert snapshot is not None
            total = build_accounting([snapshot.commit]).total
        assert (total.late, total.replayed) == (late, replayed)
        assert total.rows_in == 6 == total.used + total.late + total.replayed
        assert total.unaccounted == 0


def test_late_rows_link_to_dead_letters_and_keys_show_their_late_rows(tmp_path: Path) -> None:
    running = serve_pages([open_page_source(run_pipeline_with_late_dead_letter(tmp_path))], 0)
    try:
        letters_page = fetch_page(running, "/letters?reason=late")
        assert letters_page.status == 200
        for text in ("web/1.jsonl", "5 min", "&lt;script&gt;", "1 letter,"):
            assert text in letters_page.text, text
        assert "0 letters," in fetch_page(running, "/letters?reason=future").text
        key = fetch_page(running, "/key?user=u1")
        assert "web/1.jsonl" in key.text
        assert "5 min" in key.text
        assert "Last published results" in key.text
        assert json.loads(fetch_page(running, "/ui/key.json?user=u1").body)["history"]["late"][0]["late_us"] == 300 * S
        other = fetch_page(running, "/key?user=u%3Cb%3E")
        assert "No row of this key was late." in other.text
    finally:
        running.stop()


def test_hot_keys_and_shard_skew_are_shown(tmp_path: Path) -> None:
    file = write_two_source_config("session", tmp_path)
    heavy = [{"ts": DAY + n * S, "user": "heavy"} for n in range(9)]
    run_two_source_pipeline(file, [MicroBatch({"web": [*heavy, {"ts": DAY, "user": "light"}], "app": []})])
    running = serve_pages([open_page_source(file)], 0)
    try:
        text = fetch_page(running, "/hot").text
        assert text.index("user=heavy") < text.index("user=light")
        assert '<a href="/hot">' in fetch_page(running, "/ui/size").text
        size = json.loads(fetch_page(running, "/ui/size.json").body)
        (spread,) = size["shards"]
        assert sum(spread["rows"]) == size["commits"][-1]["rows"]
        assert spread["skew"] == max(spread["rows"]) * len(spread["rows"]) / sum(spread["rows"])
    finally:
        running.stop()
