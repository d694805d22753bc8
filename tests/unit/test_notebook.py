"""The notebook display of a pipeline, a plan, `why`, a state and a run, and the background run, without Spark."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.support.local_pipeline_script import MicroBatch
from tests.support.ui_pipeline_states import (
    M,
    draw_two_source_script,
    open_page_source,
    run_two_source_pipeline,
    write_two_source_config,
)

import slackwater as sw
from slackwater.config import toml
from slackwater.engine.observer import Counters, Observer, Status
from slackwater.errors import StartError, StateError, Topic
from slackwater.runner import background_run
from slackwater.runner.background_run import Handle
from slackwater.ui import notebook


def parse_html(displayed: Any) -> ElementTree.Element:
    """Parse the HTML of an object: one balanced element without scripts and external URLs."""
    element = ElementTree.fromstring(displayed._repr_html_())
    assert element.attrib["class"] == "slackwater"
    names = {e.tag for e in element.iter()}
    assert not names & {"script", "link", "img", "iframe"}
    assert not any("href" in e.attrib or "src" in e.attrib for e in element.iter())
    return element


def element_text(element: ElementTree.Element) -> str:
    return " ".join(t for e in element.iter() if e.tag != "style" for t in (e.text, e.tail) if t)


def find_rects(element: ElementTree.Element, cls: str) -> list[ElementTree.Element]:
    return [e for e in element.iter("rect") if e.attrib.get("class") == cls]


def test_pipeline_is_displayed_as_its_plan(tmp_path: Path) -> None:
    pipeline = toml.load(write_two_source_config("session", tmp_path))
    of_pipeline, of_plan = element_text(parse_html(pipeline)), element_text(parse_html(sw.describe(pipeline)))
    for stage in sw.describe(pipeline).stages:
        assert stage.title in of_pipeline
        assert stage.title in of_plan
    assert "Delivery: " in of_plan


def test_why_report_is_displayed_with_source_lanes_and_the_watermark_holder(tmp_path: Path) -> None:
    file = write_two_source_config("session", tmp_path)
    run_two_source_pipeline(file, draw_two_source_script(3))
    answer = sw.why(file)
    element = parse_html(answer)
    assert len([e for e in element.iter("text") if "lane" in e.attrib.get("class", "")]) == len(answer.clocks)
    text = element_text(element)
    assert answer.holder is not None
    assert f"held by {answer.holder.source}" in text
    key_answer = sw.why(toml.load(file), {"user": "u1"})
    assert key_answer.key is not None
    assert "user=u1" in element_text(parse_html(key_answer))
    assert sw.why(file, "user=u1").key == key_answer.key


@pytest.mark.parametrize("shape", ["session", "tumbling"])
def test_state_is_displayed_with_its_windows_as_bars(tmp_path: Path, shape: str) -> None:
    file = write_two_source_config(shape, tmp_path)
    run_two_source_pipeline(file, draw_two_source_script(5))
    with sw.open_state(file) as view:
        frame = view.scan(limit=notebook.MOST)
        element = parse_html(view)
    assert frame.height > 3
    bars = [e for e in element.iter("rect") if e.attrib.get("class", "").startswith("session ")]
    assert len(bars) == frame.height
    assert bool(find_rects(element, "tail open")) == (shape == "session")
    body = element.find(".//tbody")
    assert body is not None
    assert len(body) == frame.height
    with sw.open_state(file) as view:  # also an earlier commit
        assert "Epoch 9" in element_text(parse_html(view.as_of(9)))


def test_values_are_escaped_in_the_html(tmp_path: Path) -> None:
    file = write_two_source_config("session", tmp_path)
    day = 19_783 * 86_400_000_000
    evil = "<script>alert(1)</script>"
    run_two_source_pipeline(
        file, [MicroBatch({"web": [{"ts": day, "user": evil}], "app": [{"ts": day + M, "user": evil}]})]
    )
    with sw.open_state(file) as view:
        assert evil not in view._repr_html_()
        assert evil in element_text(parse_html(view))
    assert evil not in sw.why(file)._repr_html_()


def test_missing_state_is_displayed_with_a_docs_link(tmp_path: Path) -> None:
    file = write_two_source_config("session", tmp_path)
    text = element_text(parse_html(sw.open_state(file)))
    assert "there is no state yet" in text
    assert "docs/messages/state.md#there-is-no-state-to-read" in text
    with pytest.raises(StateError, match="no state yet"):
        sw.why(file)


def test_state_display_reports_a_scan_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_two_source_config("session", tmp_path)
    run_two_source_pipeline(file, draw_two_source_script(5))
    monkeypatch.setattr(notebook, "SCAN_S", -1.0)
    with sw.open_state(file) as view:
        text = element_text(parse_html(view))
    assert "the query took longer than" in text


def test_each_displayed_class_has_a_renderer() -> None:
    """A class without a renderer raises an error instead of displaying an empty cell."""
    from slackwater.core.notebook_repr import NotebookRepr

    for cls in (sw.Pipeline, sw.Plan, sw.WhyReport, sw.StateView, sw.Handle):
        assert issubclass(cls, NotebookRepr)
        assert notebook._render.dispatch(cls) is not notebook._render.dispatch(object)
    with pytest.raises(TypeError, match="a NotebookRepr cannot be rendered as HTML"):
        NotebookRepr()._repr_html_()
    assert open_page_source  # the page tests use the same states


# -- the handle ------------------------------------------------------------------------------------------------------


def epoch_status(epoch: int) -> Status:
    return Status("p", "session", "drop", epoch, 5, 1, 0, 0.1, {}, 0, None, (), 2, 2, 100, Counters(rows_in=5))


def start_run_handle(run: Callable[[threading.Event, Observer], Status | None], tmp_path: Path) -> Handle:
    return Handle(toml.load(write_two_source_config("session", tmp_path)), run)


def test_handle_returns_the_latest_status_and_stops_the_run(tmp_path: Path) -> None:
    committed = threading.Event()

    def run(stop: threading.Event, latest: Observer) -> Status | None:
        latest.on_commit(epoch_status(0))
        committed.set()
        assert stop.wait(60)
        return epoch_status(1)

    one = start_run_handle(run, tmp_path)
    assert committed.wait(60)
    assert one.status == epoch_status(0)
    assert one.is_running
    assert repr(one) == "<run of law: running, epoch 0>"
    assert "Running" in element_text(parse_html(one))
    with pytest.raises(TimeoutError, match="law: still running after 0 s"):
        one.wait(0)
    assert one.stop() == one.status == one.wait() == epoch_status(1)
    assert not one.is_running
    assert one.error is None
    assert "5 rows in" in element_text(parse_html(one))


def test_error_of_a_background_run_is_logged_and_raised_at_each_access(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def run(stop: threading.Event, latest: Observer) -> Status | None:
        latest.on_commit(epoch_status(0))
        raise StartError("law: Kafka at b:1 cannot be reached (no); check it", Topic.SERVICE_UNREACHABLE)

    with caplog.at_level(logging.ERROR, "slackwater"):
        one = start_run_handle(run, tmp_path)
        for access in (one.wait, one.stop, lambda: one.status, one.wait):
            with pytest.raises(StartError, match="cannot be reached") as raised:
                access()
            assert len(raised.traceback) < 6, "of the caller and the handle alone, however often it is raised"
    assert [r.getMessage() for r in caplog.records] == [
        "law: the run in the background ended: law: Kafka at b:1 cannot be reached (no); check it"
    ]
    assert one.latest == epoch_status(0)
    text = element_text(parse_html(one))
    assert "Ended" in text
    assert "docs/messages/services.md#a-service-cannot-be-reached" in text
    assert "cannot be reached" in repr(one)


def test_internal_error_in_a_background_run_is_raised_with_its_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def run(stop: threading.Event, latest: Observer) -> Status | None:
        raise KeyError("a bug")

    with pytest.raises(KeyError) as raised:
        start_run_handle(run, tmp_path).wait()
    assert any("test_notebook" in str(e.path) for e in raised.traceback[1:])
    assert caplog.records[0].exc_info


def test_handle_as_context_manager_stops_the_run(tmp_path: Path) -> None:
    ended = list[bool]()

    def run(stop: threading.Event, latest: Observer) -> Status | None:
        ended.append(stop.wait(60))
        return None

    with start_run_handle(run, tmp_path) as one:
        assert one.is_running
    assert ended == [True]
    with pytest.raises(ValueError, match="of the block"), start_run_handle(run, tmp_path):
        raise ValueError("of the block")
    assert ended == [True, True]

    def fails(stop: threading.Event, latest: Observer) -> Status | None:
        raise StartError("law: no")

    with pytest.raises(StartError, match="law: no"), start_run_handle(fails, tmp_path):
        pass


def test_run_in_the_background_returns_a_handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sw.run` in the background logs fewer lines. The handle raises the error of the run."""
    pipeline = toml.load(write_two_source_config("session", tmp_path))
    with pytest.raises(sw.ConfigError, match="stop: applies only to a run in the foreground"):
        sw.run(pipeline, background=True, stop=threading.Event())  # type: ignore[call-overload]
    with pytest.raises(sw.ConfigError, match="--flush: needs --available-now"):
        sw.run(pipeline, background=True, flush=True)
    from slackwater.runner import run as module

    lines: list[tuple[str, str]] = []

    def fails(runner: Any, *how: Any) -> Status | None:
        runner.reporter.notice("warning", "law: a line")
        runner.reporter.status(epoch_status(7))
        raise StartError("law: there it is")

    monkeypatch.setattr(background_run, "log_background_notice", lambda level, line: lines.append((level, line)))
    monkeypatch.setattr(module, "_run", fails)
    one = sw.run(pipeline, background=True, available_now=True)
    with pytest.raises(StartError, match="law: there it is"):
        one.wait(60)
    assert one.latest == epoch_status(7)
    assert lines == [("warning", "law: a line")]
