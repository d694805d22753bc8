"""All states of the page, as pipelines with a server each, for browser tests.

scene        contents                                           pages
live         two sources, late and bad rows, an active runner   page, old commit, bin, key, hot keys, saved file
letters      late rows as dead letters                          letters, key with late rows
stages       three stages and a join                            page, stages
waits        a runner works on the first epoch                  page before the first commit
failed       the first run failed before its first commit       page with the error
finished, died, crashed   the latest run ended, failed or was killed; no runner is active
long         names, keys and errors of maximal length
several      an overview of all pipelines
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support import three_stage_pipeline
from tests.support.local_pipeline_script import MicroBatch
from tests.support.ui_dead_letter_pipeline import run_pipeline_with_late_dead_letter
from tests.support.ui_pipeline_states import (
    DAY,
    S,
    draw_two_source_script,
    open_page_source,
    run_order_payment_join,
    run_two_source_pipeline,
    write_two_source_config,
)

from slackwater.cli.web_commands import load_page_sources, save_page
from slackwater.state.run_history import Run
from slackwater.ui.page_model import PageSource
from slackwater.ui.page_server import serve_pages

STARTED = DAY + 11 * 3600 * S
ERROR = (
    'clicks: source "web": s3://bucket/' + "a-very-long-folder-name-without-any-blank/" * 4 + "1.jsonl cannot be read "
    "(403 Forbidden); committed epochs are safe; fix the cause, and start again"
)
LONG = "a-name-without-a-blank-" * 4


@dataclass(frozen=True)
class UiScenario:
    """A URL and its name."""

    name: str
    url: str


def save_run_records(one: PageSource, *runs: Run) -> None:
    """Record runs of a pipeline that has no active runner."""
    one.store.open()
    for run in runs:
        one.store.save_run(run)
    one.store.close()


def build_run_record(hour: int, **more: object) -> Run:
    started = DAY + hour * 3600 * S
    defaults: dict[str, object] = {"started_us": started, "runner": "process 4711 on worker-3", "epoch": hour - 10}
    ended = (
        {"ended_us": started + 95 * S, "outcome": "finished", "last_epoch": hour - 9} if "outcome" not in more else {}
    )
    return Run.model_validate({**defaults, **ended, **more})


def build_failed_run(hour: int) -> Run:
    return build_run_record(
        hour, outcome="failed", ended_us=DAY + hour * 3600 * S + 9 * S, last_epoch=hour - 10, error=ERROR
    )


def run_session_pipeline(home: Path, seed: int = 4, rows: int = 120) -> PageSource:
    home.mkdir()
    file = write_two_source_config("session", home)
    run_two_source_pipeline(file, draw_two_source_script(seed, rows=rows))
    return open_page_source(file)


def run_pipeline_with_long_names(home: Path) -> PageSource:
    """Return a page source with long names of keys, sources and partitions, without blanks."""
    home.mkdir()
    file = write_two_source_config("session", home)
    file.write_text(file.read_text().replace('name = "web"', f'name = "{LONG[:60]}"'))
    rows = [{"ts": DAY + n * S, "user": LONG + str(n)} for n in range(3)]
    parted = [
        {"ts": DAY + 9 * S, "user": "ü" * 300, "partition": LONG + "-0"},
        {"ts": DAY, "user": "x", "partition": "p"},
    ]
    for epoch in range(3):
        moved = [{**row, "ts": int(str(row["ts"])) + epoch * 400 * S} for row in parted]
        script = [MicroBatch({"web": rows if not epoch else [], "app": moved}, partitions={"app": (LONG + "-0", "p")})]
        run_two_source_pipeline(file, script)
    return open_page_source(file)


@contextmanager
def serve_ui_scenarios(home: Path) -> Iterator[list[UiScenario]]:
    """Yield all scenes. Their servers run until the end of the block."""
    all_scenes, several = list[UiScenario](), list[PageSource]()
    with ExitStack() as stack:

        def add(name: str, one: PageSource, *paths: str) -> str:
            running = serve_pages([one], 0)
            stack.callback(running.stop)
            base = f"http://127.0.0.1:{running.port}"
            for path in paths:
                tail = path.replace("?", "-").replace("/", "-").split("&")[0].rstrip("-")[:30]
                all_scenes.append(UiScenario(name + tail, base + path))
            several.append(one)
            return base

        live = run_session_pipeline(home / "live")
        save_run_records(live, build_run_record(9), build_failed_run(10), build_run_record(11, outcome=None))
        live.store.open()
        stack.callback(live.store.close)
        bins = f"/closing?from={DAY}&to={DAY + 86_400 * S}"
        add("live", live, "/", "/epoch/9", bins, "/key?user=u7", "/key?user=nobody", "/hot", "/nix", "/key?nix=1")
        save_page([live], home / "saved.html")
        all_scenes.append(UiScenario("saved", (home / "saved.html").as_uri()))
        (home / "letters").mkdir()
        letters = open_page_source(run_pipeline_with_late_dead_letter(home / "letters"))
        add("letters", letters, "/", "/letters?reason=late", "/key?user=u1")
        (home / "stages").mkdir()
        stages = open_page_source(three_stage_pipeline.run_three_stage_pipeline(home / "stages"))
        names = ("sessions", "minutes", "seen")
        add(
            "stages",
            stages,
            "/",
            *(f"/stage/{n}/" for n in names),
            "/stage/sessions/key?user=u1",
            f"/stage/sessions{bins}",
        )
        run_order_payment_join(home / "join", kind="left")
        add("join", load_page_sources(str(home / "join"))[0], "/")
        for name, run in (
            ("finished", build_run_record(11)),
            ("died", build_failed_run(11)),
            ("crashed", build_run_record(11, outcome=None)),
        ):
            one = run_session_pipeline(home / name, rows=40)
            save_run_records(
                one, build_run_record(9), build_run_record(10, outcome="stopped", ended_us=STARTED, last_epoch=1), run
            )
            add(name, one, "/")
        for name in ("waits", "failed"):
            (home / name).mkdir()
            one = open_page_source(write_two_source_config("session", home / name))
            if name == "failed":
                save_run_records(one, build_failed_run(11))
            else:
                one.store.open()
                stack.callback(one.store.close)
            add(name, one, "/")
        long = run_pipeline_with_long_names(home / "long")
        save_run_records(long, build_failed_run(11))
        add("long", long, "/", bins, f"/key?user={LONG}0", "/hot")
        every = [_rename_page_source(w, f"p{n}") for n, w in enumerate(several)]
        running = serve_pages(every, 0)
        stack.callback(running.stop)
        all_scenes.append(UiScenario("several", f"http://127.0.0.1:{running.port}/"))
        all_scenes.append(UiScenario("several-one", f"http://127.0.0.1:{running.port}/p/p0/"))
        yield all_scenes


def _rename_page_source(one: PageSource, name: str) -> PageSource:
    """Return the source under another name. Only the page of several pipelines uses the name."""
    return replace(one, pipeline=one.pipeline.model_copy(update={"name": name}))
