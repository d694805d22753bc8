"""Past runs on the page: a failed latest run in the header, all runs in the history, and labelled table cells."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.local_pipeline_script import MicroBatch
from tests.support.ui_page_client import fetch_page
from tests.support.ui_pipeline_states import DAY, open_page_source, run_two_source_pipeline, write_two_source_config
from tests.support.ui_scenarios import build_failed_run, build_run_record, save_run_records

from slackwater.ui.page_server import serve_pages
from slackwater.ui.pages import label_table_cells


def test_failed_run_is_shown_in_the_header_and_in_the_history(tmp_path: Path) -> None:
    file = write_two_source_config("session", tmp_path)
    run_two_source_pipeline(file, [MicroBatch({"web": [{"ts": DAY, "user": "u1"}], "app": []})])
    one = open_page_source(file)
    running = serve_pages([one], 0)
    try:
        assert "No run is recorded" in fetch_page(running, "/ui/runs").text
    finally:
        running.stop()
    save_run_records(one, build_run_record(10), build_failed_run(11))
    running = serve_pages([one], 0)
    try:
        history = json.loads(fetch_page(running, "/ui/runs.json").body)
        assert [r["outcome"] for r in history["runs"]] == ["failed", "finished"]
        assert history["failure"] == history["runs"][0]
        top = fetch_page(running, "/ui/top").text
        assert "403 Forbidden" in top
        assert "none is running" in top
        assert "sentence good" not in top
        assert "403 Forbidden" in fetch_page(running, "/").text
        one.store.open()
        one.store.save_run(build_run_record(12, outcome=None))
    finally:
        running.stop()
    running = serve_pages([one], 0)
    try:
        assert json.loads(fetch_page(running, "/ui/runs.json").body)["failure"] is None
        assert "403 Forbidden" not in fetch_page(running, "/ui/top").text
    finally:
        running.stop()
        one.store.close()


def test_failed_first_run_is_shown_as_an_error(tmp_path: Path) -> None:
    one = open_page_source(write_two_source_config("session", tmp_path))
    running = serve_pages([one], 0)
    try:
        assert fetch_page(running, "/").status == 200
    finally:
        running.stop()
    save_run_records(one, build_failed_run(11))
    running = serve_pages([one], 0)
    try:
        front_page = fetch_page(running, "/")
        assert front_page.status == 503
        assert "403 Forbidden" in front_page.text
        assert 'role="alert"' in front_page.text
    finally:
        running.stop()


def test_table_cells_are_labelled_with_their_columns() -> None:
    table = '<table class="x"><thead><tr><th>a &amp; b</th><th><i>c</i></th></tr></thead><tbody><tr><th scope="row">1</th><td>&lt;td&gt;</td></tr><tr><td colspan="2">x</td></tr></tbody></table>'
    labelled = label_table_cells(f"<p>{table}</p>")
    assert '<th data-label="a &amp; b" scope="row">1</th><td data-label="c">&lt;td&gt;</td>' in labelled
    assert '<td data-label="" colspan="2">x</td>' in labelled
    assert label_table_cells(labelled) == labelled
