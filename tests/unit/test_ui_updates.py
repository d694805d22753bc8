"""Updates of viewers: each changed block is sent once per commit, with equal bytes for all and without polling."""

from __future__ import annotations

import asyncio
import gc
import http.client
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.local_pipeline_script import MicroBatch
from tests.support.ui_page_client import fetch_page
from tests.support.ui_pipeline_states import DAY, M, open_page_source, run_two_source_pipeline, write_two_source_config

from slackwater.engine import epoch_driver
from slackwater.ui import page_cache, page_model, pages
from slackwater.ui.blocks import throughput_and_size
from slackwater.ui.page_cache import PageUpdate, ViewerNotifier, build_update
from slackwater.ui.page_server import UiServer, serve_pages
from slackwater.ui.pages import PageLocation


def parse_events(stream: bytes) -> list[tuple[str, str]]:
    """Parse events and their data as a browser does (HTML standard, 9.2.6)."""
    parsed_events, name, data = [], "message", list[str]()
    for line in re.split("\r\n|\r|\n", stream.decode()):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                parsed_events.append((name, "\n".join(data)))
            name, data = "message", []
        elif field == "event":
            name = value
        elif field == "data":
            data.append(value)
    return parsed_events


BLOCKS = st.dictionaries(
    st.sampled_from(["top", "rows", "closing"]), st.text(alphabet=st.sampled_from("a :\n\r\u2028<é")).map(str.encode)
)


@given(BLOCKS, BLOCKS)
def test_viewer_gets_exactly_the_rendered_blocks(first: Mapping[str, bytes], second: Mapping[str, bytes]) -> None:
    one = build_update("1-a", first, None)
    two = build_update("2-b", second, one)

    def as_sent(blocks: Mapping[str, bytes]) -> dict[str, str]:
        return {n: b.decode().replace("\r", "&#13;") for n, b in blocks.items()}

    assert parse_events(one.bytes_for_viewer("")) == [*as_sent(first).items(), ("commit", "1-a")]
    assert parse_events(two.bytes_for_viewer("elsewhere")) == [*as_sent(second).items(), ("commit", "2-b")]
    changed = {n: b for n, b in second.items() if first.get(n) != b}
    assert parse_events(two.bytes_for_viewer("1-a")) == [*as_sent(changed).items(), ("commit", "2-b")]
    assert parse_events(two.short) == [("commit", "2-b")]
    assert b"id: 2-b\n" in two.short


def test_notification_wakes_the_waiting_viewers_of_every_event_loop() -> None:
    bell, woken, waiting = ViewerNotifier(), Counter[str](), threading.Barrier(3)

    async def one(name: str, begun: Callable[[], object]) -> None:
        event = bell.listen()
        begun()
        await asyncio.wait_for(event.wait(), 60)
        bell.leave(event)
        woken[name] += 1

    async def many(name: str) -> None:
        remaining = [5]

        def begun() -> None:
            remaining[0] -= 1
            if not remaining[0]:
                threading.Thread(target=waiting.wait, daemon=True).start()

        await asyncio.gather(*(one(name, begun) for _ in range(5)))

    threads = [threading.Thread(target=lambda n=n: asyncio.run(many(n))) for n in ("a", "b")]
    for thread in threads:
        thread.start()
    waiting.wait(60)
    bell.notify()
    for thread in threads:
        thread.join(60)
    assert woken == {"a": 5, "b": 5}
    bell.notify()  # no viewer waits, and the loops are closed
    assert bell._listeners == {}


def commit_event(file: Path, number: int, user: str = "u1") -> None:
    run_two_source_pipeline(file, [MicroBatch({"web": [{"ts": DAY + number * M, "user": user}], "app": []})])


@pytest.fixture
def session_config_file(tmp_path: Path) -> Path:
    path = write_two_source_config("session", tmp_path)
    commit_event(path, 0)
    return path


@pytest.fixture
def ui_page_server(session_config_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UiServer]:
    monkeypatch.setattr(page_cache, "PAUSE", 1)
    server = serve_pages([open_page_source(session_config_file)], 0)
    yield server
    server.stop()
    for viewer in threading.enumerate():
        if isinstance(viewer, PageViewer):
            viewer.join(60)


class PageViewer(threading.Thread):
    """A viewer that follows the page and records each update."""

    def __init__(self, ui_server: UiServer, path: str) -> None:
        super().__init__(daemon=True)
        self.updates: list[dict[str, str]] = []
        self.raw: list[bytes] = []
        self._client = http.client.HTTPConnection("127.0.0.1", ui_server.port, timeout=60)
        self._client.request("GET", path)
        self._answer = self._client.getresponse()
        self.changed = threading.Condition()
        self.start()

    def run(self) -> None:
        try:
            self._read_updates()
        finally:
            self._answer.close()
            self._client.close()

    def _read_updates(self) -> None:
        buffer = b""
        while part := self._answer.readline():
            buffer += part
            if part == b"\n" and b"event: commit\n" in buffer:
                with self.changed:
                    self.raw.append(buffer)
                    self.updates.append(dict(parse_events(buffer)))
                    self.changed.notify_all()
                buffer = b""

    def wait_for_updates(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.updates) >= count, 60), self.updates


def find_stream_path(page: str) -> str:
    (path,) = re.findall(r'sse-connect="([^"]*)"', page)
    return path.replace("&amp;", "&")


def test_commit_is_rendered_once_and_all_viewers_get_the_changes(
    session_config_file: Path, ui_page_server: UiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, draw = Counter[str](), pages.render_fragment

    def counted(name: str, *arguments: Any) -> bytes:
        drawn[name] += 1
        return draw(name, *arguments)

    page = fetch_page(ui_page_server, "/").text
    monkeypatch.setattr(pages, "render_fragment", counted)
    viewers = [PageViewer(ui_page_server, find_stream_path(page)) for _ in range(12)]
    for number in (1, 2):
        before = {b: fetch_page(ui_page_server, f"/ui/{b}").text for b in pages.BLOCKS}
        drawn.clear()
        commit_event(session_config_file, number)
        for viewer in viewers:
            viewer.wait_for_updates(number)
        after = {b: fetch_page(ui_page_server, f"/ui/{b}").text for b in pages.BLOCKS}
        assert {tuple(v.updates[number - 1].items()) for v in viewers} == {
            tuple(viewers[0].updates[number - 1].items())
        }
        sent = viewers[0].updates[number - 1]
        # viewers get all blocks of their first commit, because the previous one was not rendered
        expected = {b: t for b, t in after.items() if number == 1 or t != before[b]}
        assert {b: t for b, t in sent.items() if b != "commit"} == expected
        assert sent["commit"] == fetch_page(ui_page_server, "/ui/top.json").headers["etag"].strip('"')
        assert drawn["closing"] <= 2, "once for those who follow, once for anyone who asks"
    assert "joins" not in viewers[0].updates[1], "there is none, before as after"
    late = PageViewer(ui_page_server, "/ui/events?blocks&seen=another")
    late.wait_for_updates(1)
    assert set(late.updates[0]) == {*pages.BLOCKS, "commit"}
    plain = PageViewer(ui_page_server, "/ui/events?seen=another")
    plain.wait_for_updates(1)
    assert set(plain.updates[0]) == {"commit"}


def test_page_models_of_past_commits_are_freed(session_config_file: Path, ui_page_server: UiServer) -> None:
    """Only the latest page model and its update stay in memory."""

    def all_kept() -> list[object]:
        gc.collect()
        return [
            o for o in gc.get_objects() if type(o) in (page_model.PageModel, PageUpdate)
        ]  # isinstance would resolve weak proxies

    others = all_kept()  # objects of other tests in this process
    earlier_ids = {id(o) for o in others}

    def new_counts() -> dict[str, int]:
        return dict(Counter(type(o).__name__ for o in all_kept() if id(o) not in earlier_ids))

    viewers = [PageViewer(ui_page_server, find_stream_path(fetch_page(ui_page_server, "/").text)) for _ in range(3)]
    counts = []
    for number in range(1, 5):
        commit_event(session_config_file, number)
        for viewer in viewers:
            viewer.wait_for_updates(number)
        fetch_page(ui_page_server, "/")
        fetch_page(ui_page_server, f"/epoch/{number - 1}")
        counts.append(new_counts())
    assert all(set(now) == {"PageModel", "PageUpdate"} and max(now.values()) <= 2 for now in counts), (
        counts
    )  # one may be under construction


def test_state_and_viewers_are_not_polled_without_a_commit(
    session_config_file: Path, ui_page_server: UiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Viewers wait for a notification. A state without viewers is not read."""
    page = fetch_page(ui_page_server, "/").text
    looks, look = [], page_model.load_model
    monkeypatch.setattr(
        page_cache, "load_model", lambda *arguments, **more: looks.append(1) or look(*arguments, **more)
    )
    viewers = [PageViewer(ui_page_server, find_stream_path(page)) for _ in range(5)]
    (one,) = ui_page_server._caches
    turns: list[str] = []
    ready = page_cache.PageCache.ready_update.fget
    assert ready is not None
    monkeypatch.setattr(
        page_cache.PageCache, "ready_update", property(lambda self: turns.append("asked") or ready(self))
    )
    for _ in range(20):
        one.refresh()
        one._next = 0.0  # regardless of the pause
    assert (looks, turns) == ([], [])
    commit_event(session_config_file, 1)
    for viewer in viewers:
        viewer.wait_for_updates(1)
    assert len(looks) == 1
    assert len(turns) == len(viewers)


def test_damaged_commit_is_shown_until_it_is_removed(session_config_file: Path, ui_page_server: UiServer) -> None:
    viewer = PageViewer(ui_page_server, find_stream_path(fetch_page(ui_page_server, "/").text))
    manifests = session_config_file.parent / "state" / "law" / "manifests"
    (latest,) = manifests.glob("*.json")
    (manifests / "000000001.json").write_text(latest.read_text().replace('"epoch":0', '"epoch":1'))
    viewer.wait_for_updates(1)
    assert "is damaged" in viewer.updates[0]["top"]
    (manifests / "000000001.json").unlink()
    viewer.wait_for_updates(2)
    assert "Every row is accounted for" in viewer.updates[1]["top"]


def test_stopped_server_disconnects_its_viewers(session_config_file: Path) -> None:
    server = serve_pages([open_page_source(session_config_file)], 0)
    viewers = [PageViewer(server, find_stream_path(fetch_page(server, "/").text)) for _ in range(3)]
    server.stop()
    for viewer in viewers:
        viewer.join(60)
        assert not viewer.is_alive()


def test_run_of_one_batch_has_a_read_rate(session_config_file: Path) -> None:
    """One of the two commits reads all rows, and the other closes the open windows."""
    page_source = open_page_source(session_config_file)
    with page_source.store.peek() as snapshot:
        assert snapshot is not None
        commit = snapshot.commit

    def rendered_pace(*commits: Any) -> tuple[throughput_and_size.Throughput, str]:
        block = throughput_and_size.build_throughput(commits, [], 0)
        whole = replace(page_model.load_model(page_source, 0), pace=block)
        text = pages.render_fragment("pace", whole, PageLocation("")).decode()
        return block, re.sub(r"\s+", " ", re.sub("<[^>]+>", "", text.split("</p>")[0])).strip()

    def at_epoch(epoch: int, rows: int, after_us: int, spent_us: int) -> Any:
        counters = {**commit.counters, "spent_us": {"read": spent_us}}
        stages = [s.model_copy(update={"counters": {**s.counters, "rows_in": rows}}) for s in commit.stages]
        record = {"epoch": epoch, "committed_us": commit.committed_us + after_us, "counters": counters}
        return commit.model_copy(update={**record, "stages": tuple(stages)})

    batch = at_epoch(0, 6000, 0, 1_500_000), at_epoch(1, 6000, 500_000, 2_000_000)
    block, text = rendered_pace(*batch)
    assert (block.rows, block.over_us, block.rows_per_s) == (6000, 2_000_000, 3000)
    assert text == (
        "3,000 rows per second were read over the kept commits: 6,000 in 2 s; epochs were in progress 100.0% of the time. "
        "While an epoch is in progress, it reads 3,000 rows per second."
    )
    assert rendered_pace(batch[0])[0].rows_per_s == 4000, "of one commit, too, if it is the first"
    # no rows were read between the retained commits, so there is no rate
    later = at_epoch(7, 6000, 60_000_000, 2_000_000), at_epoch(8, 6000, 63_000_000, 3_000_000)
    block, text = rendered_pace(*later)
    assert (block.rows, block.rows_per_s) == (0, None)
    assert text == (
        "No rows were read in the 3 s between the commit of epoch 7 and the latest commit. "
        "While an epoch is in progress, it reads 2,000 rows per second."
    )
    block, text = rendered_pace(later[1])
    assert block.over_us is None
    assert text.startswith("A rate needs two kept commits, but only one exists. While an epoch is in progress")


def test_throughput_block_shows_the_planning_phase(session_config_file: Path) -> None:
    """The in-process engine does not plan, so the test sets the planning time in the commits of a run."""
    assert set(throughput_and_size.PHASES) == set(pages.PHASE_LABELS) == set(epoch_driver.PHASES)
    page_source = open_page_source(session_config_file)
    with page_source.store.peek() as snapshot:
        assert snapshot is not None
        commit = snapshot.commit
    spent = {p: 1000 * n for n, p in enumerate(throughput_and_size.PHASES, 1)}
    first = commit.model_copy(update={"counters": {**commit.counters, "spent_us": spent}})
    later = {p: us + 70_000 for p, us in spent.items()}
    second = first.model_copy(
        update={
            "epoch": 1,
            "committed_us": first.committed_us + 10**6,
            "counters": {**first.counters, "spent_us": later},
        }
    )
    block = throughput_and_size.build_throughput([first, second], [], first.committed_us)
    assert [lap.phases.get("plan") for lap in block.laps] == [1000, 70_000]
    assert block.busy == pytest.approx((7 * 0.07 + 0.028) / 1.010), "from the beginning of the first epoch on"
    whole = replace(page_model.load_model(page_source, first.committed_us), pace=block)
    text = pages.render_fragment("pace", whole, PageLocation("")).decode()
    assert text.count('class="phase plan"') == 2 * 2  # in each of the two charts
    assert '<li class="phase-plan">plan</li>' in text
    # a commit of an older version has no planning time
    old = {p: us for p, us in spent.items() if p != "plan"}
    former = first.model_copy(update={"counters": {**first.counters, "spent_us": old}})
    assert [lap.phases.get("plan") for lap in throughput_and_size.build_throughput([former], [], 0).laps] == [None]
