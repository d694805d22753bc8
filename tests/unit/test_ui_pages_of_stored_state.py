"""The UI page of a state: without a config, at an older commit, during a run, and with the backlog of the sources."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from tests.support.local_pipeline_script import MicroBatch, run_local_script
from tests.support.ui_page_client import HtmlTagChecker, fetch_page
from tests.support.ui_pipeline_states import (
    CLOCK,
    draw_two_source_script,
    open_page_source,
    run_two_source_pipeline,
    write_two_source_config,
)
from tests.support.why_command_fixtures import JOIN

from slackwater.cli.main import main
from slackwater.cli.web_commands import load_page_sources
from slackwater.config import toml
from slackwater.config.window import Aggregation, Window
from slackwater.core.offsets import FileOffsets
from slackwater.errors import StartError
from slackwater.runner.run_options import RunOptions
from slackwater.state.files.store import FilesStore
from slackwater.ui import pages
from slackwater.ui.blocks import throughput_and_size
from slackwater.ui.blocks.throughput_and_size import BacklogPoller
from slackwater.ui.page_model import load_model
from slackwater.ui.page_server import serve_pages
from slackwater.ui.pages import PageLocation


@pytest.mark.parametrize("shape", ["session", "hopping"])
def test_state_is_shown_alike_with_and_without_a_config(tmp_path: Path, shape: str) -> None:
    file = write_two_source_config(shape, tmp_path)
    run_two_source_pipeline(file, draw_two_source_script(3))
    (alone,) = load_page_sources(str(tmp_path / "state"))
    assert alone.is_described
    without_config, with_config = load_model(alone, CLOCK), load_model(open_page_source(file), CLOCK)
    for block in ("top", "watermark", "rows", "closing", "size"):
        block_alone, block_with_config = (
            pages.block_as_data(block, without_config),
            pages.block_as_data(block, with_config),
        )
        if block == "top":
            block_alone["told"] = tuple(line.replace("FILE", str(file)) for line in block_alone["told"])
        assert block_alone == block_with_config, block
    assert (
        pages.block_as_data("pace", without_config)["waits"] == ()
    )  # a commit does not store the location of the sources


def test_join_and_downstream_window_are_shown_without_a_config(tmp_path: Path) -> None:
    join = toml.loads(JOIN).transform.join
    assert join is not None
    rows = MicroBatch(
        {s: [{"ts": n * 20_000_000, "user": f"u{n % 3}"} for n in range(9)] for s in ("orders", "payments")}
    )
    types, sources = {"user": "string", "price": "decimal(10,2)"}, ("orders", "payments")
    after = Window(
        kind="tumbling",
        duration_ms=60_000,
        max_groups_per_window=99,
        group_by=["left_user"],
        aggregations=[Aggregation(agg="count", as_="n")],
    )
    inner = join.model_copy(update={"kind": "inner"})
    run_local_script(inner, [rows, rows], types, sources, flush=False, state_dir=str(tmp_path), downstream=after)
    (alone,) = load_page_sources(str(tmp_path / "law"))
    seen = load_model(alone, 0)
    assert [s.kind for s in seen.stages] == ["join", "tumbling"]
    assert seen.stages[0].reads == sources
    assert seen.joins is not None
    assert (
        seen.stages[0].open >= sum(s.rows for s in seen.joins.sides) > 0
    )  # including expired rows that are still stored
    text = pages.render_page(seen, PageLocation("")).decode()
    assert text.count('class="box"') == 2
    assert [f'href="/stage/{s.at}/"' in text for s in seen.stages] == [True, True]
    for name in ("joins-title", "closing-title"):
        assert f'id="{name}"' in text


def test_overview_lists_all_pipelines_of_a_state_directory(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        file = write_two_source_config("session", tmp_path / name)
        file.write_text(file.read_text().replace(str(tmp_path / name / "state"), str(tmp_path / "state")))
        run_two_source_pipeline(file, draw_two_source_script(2, epochs=3))
        (tmp_path / "state" / "law").rename(tmp_path / "state" / name)
        for commit in (tmp_path / "state" / name / "manifests").glob("*.json"):
            from slackwater.storage.arrow_files import file_checksum

            line = json.dumps({**json.loads(commit.read_text().splitlines()[0]), "pipeline": name})
            commit.write_text(f"{line}\n{file_checksum(line.encode())}\n")
    page_sources = load_page_sources(str(tmp_path / "state"))
    assert [w.pipeline.name for w in page_sources] == ["one", "two"]
    running = serve_pages(page_sources, 0)
    try:
        text = fetch_page(running, "/").text
        assert 'href="/p/one/"' in text and 'href="/p/two/"' in text
        assert fetch_page(running, "/p/two/ui/top.json").status == 200
    finally:
        running.stop()
    with pytest.raises(StartError, match="no pipeline has a state here"):
        load_page_sources(str(tmp_path / "one"))


def test_older_commit_is_shown_with_the_values_of_that_commit(tmp_path: Path) -> None:
    file = write_two_source_config("session", tmp_path)
    run_two_source_pipeline(file, draw_two_source_script(4))
    running = serve_pages([open_page_source(file)], 0)
    try:
        latest = json.loads(fetch_page(running, "/ui/top.json").text)["epoch"]
        text = fetch_page(running, "/").text
        tags = HtmlTagChecker(text).found
        links = [a["href"] for tag, a in tags if tag == "a" and str(a.get("href")).startswith("/epoch/")]
        assert links[-1] == f"/epoch/{latest}"
        assert len(links) > 4
        past = fetch_page(running, str(links[0]))
        assert past.status == 200
        epoch = int(str(links[0]).rpartition("/")[2])
        assert "stays at this commit" in past.text and "sse-connect" not in past.text
        then = load_model(open_page_source(file), 0, epoch)
        assert then.top.epoch == epoch < latest
        assert then.top.sentence in past.text.replace("&#34;", '"')
        assert then.pace.laps[-1].epoch == epoch
        assert fetch_page(running, "/epoch/999").status == 503
    finally:
        running.stop()


def test_uncommitted_files_count_as_backlog(tmp_path: Path) -> None:
    file = write_two_source_config("session", tmp_path)
    run_two_source_pipeline(file, draw_two_source_script(4))
    asker, one = BacklogPoller(), open_page_source(file)
    for folder, names in (("web", ("a.jsonl", ".hidden.jsonl", "_tmp.jsonl")), ("app", ())):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_text("{}")
    with one.store.peek() as snapshot:
        assert snapshot is not None
        web, app = asker.poll(one.pipeline, snapshot)
        assert (web.count, web.unit, app.count, app.rows) == (1, "files", 0, 0)
        assert web.rows is None  # no file was read yet, so the rows per file are unknown
        # a committed file is not part of the backlog; its rows are the rows per file
        store = FilesStore(tmp_path / "state", "law")
        name = store.write_list(0, [json.dumps([(tmp_path / "web" / n).as_uri(), 0, 2]) for n in ("a.jsonl",)])
        offsets = FileOffsets((name,), 1)
        sources = {**snapshot.commit.sources}
        sources["web"] = sources["web"].model_copy(update={"offsets": offsets})
        (tmp_path / "web" / "b.jsonl").write_text("{}")
        (tmp_path / "web" / "c.jsonl").write_text("{}")
        later = dataclasses.replace(snapshot, commit=snapshot.commit.model_copy(update={"sources": sources}))
        web, _ = BacklogPoller().poll(one.pipeline, later)
        assert (web.count, web.rows) == (2, 2 * snapshot.commit.clocks["web"].rows)


def test_poll_of_an_unavailable_source_ends_at_the_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    from slackwater.connectors.files.directory_listing import DirectoryListing

    release = threading.Event()
    monkeypatch.setattr(DirectoryListing, "files", lambda listing: release.wait() and [])
    monkeypatch.setattr(throughput_and_size, "LONGEST_S", 0.01)
    file = write_two_source_config("session", tmp_path)
    run_two_source_pipeline(file, draw_two_source_script(4))
    one = open_page_source(file)
    with one.store.peek() as snapshot:
        assert snapshot is not None
        for _ in range(3):
            backlogs = one.poller.poll(one.pipeline, snapshot)
            assert [w.problem for w in backlogs] == ["no response yet"] * 2
        assert sum(t.name.startswith("ui-asks-") for t in threading.enumerate()) == 2
    release.set()


def test_run_with_ui_serves_the_page_during_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_two_source_config("session", tmp_path)
    run_two_source_pipeline(file, draw_two_source_script(4))
    seen: list[str] = []

    def run(pipeline: Any, options: RunOptions) -> None:
        assert options.on_notice is not None
        options.on_notice("info", "it runs")
        (address,) = re.findall(r"http://127\.0\.0\.1:\d+/", capsys.readouterr().err)
        with urlopen(address) as answer:
            seen.append(answer.read().decode())
        seen.append(address)

    monkeypatch.setattr("slackwater.runner.run.run_pipeline", run)
    monkeypatch.setattr(sys, "argv", ["slackwater", "run", str(file), "--ui", "--ui-port", "0"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    assert "Who holds the watermark?" in seen[0]
    with pytest.raises(OSError):
        urlopen(seen[1])
