"""Source planners and the polling loop, without Spark: input and start of epochs, and silence of sources."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slackwater.config.source import Source
from slackwater.connectors.files.planner import FilesPlanner, create_listing
from slackwater.connectors.files.source import FilesSource
from slackwater.connectors.kafka.planner import limit_offsets
from slackwater.connectors.pipeline_sources import SourcePlanners
from slackwater.connectors.source import SourceUnavailableError
from slackwater.errors import EpochError, StartError
from slackwater.runner import run_loops


def files_source(query: str, **more: Any) -> FilesSource:
    spec = Source(name="events", connection="lake", query=query, format="json", **more)
    return FilesSource(spec, None)  # type: ignore[arg-type]  # its schema is for reading only


def write_source_file(folder: Path, name: str, modified_s: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("x")
    os.utime(path, (1_600_000_000 + modified_s, 1_600_000_000 + modified_s))
    return path


def next_file_names(planner: FilesPlanner) -> list[str]:
    part = planner.next()
    return [] if part is None else [e.path.rpartition("/")[2] for e in part.entries]


# -- files -------------------------------------------------------------------------------------------------------------


def test_new_files_are_planned_oldest_first_up_to_the_limit(tmp_path: Path) -> None:
    for modified_s, name in enumerate(["e", "d", "c", "b", "a"]):
        write_source_file(tmp_path, name, modified_s)
    planner = FilesPlanner(files_source(str(tmp_path), max_files_per_trigger=2), [])
    assert next_file_names(planner) == ["e", "d"]
    write_source_file(tmp_path, "late", -5)  # older than the planned files: it is planned after the next listing
    assert next_file_names(planner) == ["c", "b"]
    assert next_file_names(planner) == ["late", "a"]
    assert planner.next() is None
    write_source_file(tmp_path, "e", 99)  # already read, so it is not read again
    write_source_file(tmp_path, "f", 1)
    assert next_file_names(planner) == ["f"]


def test_files_in_the_state_are_not_planned_again(tmp_path: Path) -> None:
    for name in ("a b", "100%", "ä"):
        write_source_file(tmp_path, name)
    first = FilesPlanner(files_source(str(tmp_path)), []).next()
    assert first is not None
    write_source_file(tmp_path, "new")
    assert next_file_names(FilesPlanner(files_source(str(tmp_path)), first.entries)) == ["new"]


def test_the_end_of_the_input_is_fixed_at_the_start(tmp_path: Path) -> None:
    for number in range(3):
        write_source_file(tmp_path, f"{number}", number)
    planner = FilesPlanner(files_source(str(tmp_path), max_files_per_trigger=2), [])
    planner.stop_at_current_end()
    write_source_file(tmp_path, "3", 3)
    assert planner.unplanned_files == 3
    assert [next_file_names(planner) for _ in range(3)] == [["0", "1"], ["2"], []]


def test_files_that_vanish_before_they_are_read_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(5):
        write_source_file(tmp_path, f"{number}", number)
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    planner = FilesPlanner(files_source(str(tmp_path), max_files_per_trigger=2), [])
    planner.stop_at_current_end()
    (tmp_path / "0").unlink()
    (tmp_path / "1").unlink()
    assert next_file_names(planner) == ["2", "3"], "an epoch without files is none"
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert warnings == [
        f'source "events": {tmp_path}/{n} was removed before it was read; it is skipped' for n in (0, 1)
    ]


def test_file_is_planned_with_its_current_size(tmp_path: Path) -> None:
    path = write_source_file(tmp_path, "a")
    planner = FilesPlanner(files_source(str(tmp_path)), [])
    planner.stop_at_current_end()
    path.write_text("grown")
    part = planner.next()
    assert part is not None
    assert part.entries[0].size == 5
    assert part.entries[0] == part.entries[0].current


def test_file_name_that_is_not_utf8_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.json")).touch()
    write_source_file(tmp_path, "a")
    planner = FilesPlanner(files_source(str(tmp_path)), [])
    assert next_file_names(planner) == ["a"]
    assert planner.next() is None
    assert [r.getMessage().count("\\xff.json is not UTF-8") for r in caplog.records] == [1]


@pytest.mark.parametrize("options", [{"latestFirst": "true"}, {"maxBytesPerTrigger": "1g"}, {"cleanSource": "delete"}])
def test_unsupported_options_and_locations_are_left_to_spark(tmp_path: Path, options: Mapping[str, str]) -> None:
    assert create_listing(files_source(str(tmp_path), options=options).spec) is None
    assert create_listing(files_source(str(tmp_path), options={"multiLine": "true"}).spec) is not None
    assert create_listing(files_source("s3a://bucket/in").spec) is None
    assert (
        create_listing(files_source(f"file://{tmp_path}").spec)
        == create_listing(files_source(f"file:{tmp_path}").spec)
        == create_listing(files_source(str(tmp_path)).spec)
    )


def test_conflicting_partition_folders_are_reported_with_a_one_line_error(tmp_path: Path) -> None:
    write_source_file(tmp_path / "a=1", "x")
    write_source_file(tmp_path / "b", "y")
    with pytest.raises(EpochError, match=r'^source "events": "\S+" and "\S+/b" cannot be read as one table'):
        FilesPlanner(files_source(str(tmp_path)), []).next()


def test_unreadable_folder_is_reported_with_a_one_line_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(folder: str) -> Any:
        raise PermissionError(13, "Permission denied", folder)

    planner = FilesPlanner(files_source(str(tmp_path)), [])
    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(EpochError, match=r'^source "events": "\S+" cannot be listed \(Permission denied\)'):
        planner.next()


class ScriptedPlanner:
    """Planner with scripted answers."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def next(self) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_planned_batch_waits_while_another_source_is_unavailable() -> None:
    away = SourceUnavailableError(StartError("Kafka is away"))
    one, other = ScriptedPlanner("first", None, "third"), ScriptedPlanner(away, "second", "fourth")
    planners = SourcePlanners(None, {"one": one, "other": other})  # type: ignore[arg-type, dict-item]
    with pytest.raises(SourceUnavailableError):
        planners.next()
    assert planners.next() == {"one": "first", "other": "second"}
    assert planners.next() == {"other": "fourth"}, "the first source was polled again"
    assert one.answers == ["third"]


# -- offsets -----------------------------------------------------------------------------------------------------------


def test_offset_limit_is_divided_among_the_partitions() -> None:
    start, end = {("t", 0): 0, ("t", 1): 100, ("t", 2): 7}, {("t", 0): 900, ("t", 1): 200, ("t", 2): 7}
    assert limit_offsets(start, end, None) == limit_offsets(start, end, 1000) == end
    assert limit_offsets(start, end, 100) == {("t", 0): 90, ("t", 1): 110, ("t", 2): 7}
    assert limit_offsets(start, end, 1) == {("t", 0): 1, ("t", 1): 101, ("t", 2): 7}, "each gets on"
    assert limit_offsets({("t", 0): 50, ("t", 1): 0}, {("t", 0): 10, ("t", 1): 100}, 10) == {("t", 0): 10, ("t", 1): 10}


# -- the loop ----------------------------------------------------------------------------------------------------------


class FakeClock:
    """Clock that advances when the loop waits, and when an epoch advances it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(run_loops.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(run_loops.time, "time", lambda: 5_000_000.0 + self.now)


class ScriptedRun:
    """Loop over sources with scripted answers: rows, an empty answer or an error."""

    def __init__(
        self,
        clock: FakeClock,
        script: Callable[[], Iterator[Any]],
        every_ms: int = 0,
        pause_ms: int = 500,
        epoch_s: float = 0.0,
    ) -> None:
        self.clock, self.answers, self.epoch_s = clock, script(), epoch_s
        self.poll_times: list[float] = []
        self.epochs_and_ticks: list[tuple[str, float, float]] = []  # kind, time, quiet seconds before it
        self.stop = SimpleNamespace(is_set=lambda: self.ended, set=self._end, wait=self._wait)
        self.ended = False
        self.pipeline = SimpleNamespace(name="p", idle_pause_ms=pause_ms, trigger_interval_ms=every_ms)
        self.driver = SimpleNamespace(state=None)

    def _end(self) -> None:
        self.ended = True

    def _wait(self, seconds: float) -> None:
        self.clock.now += seconds

    def next(self) -> Mapping[str, Any]:
        self.poll_times.append(self.clock.now)
        answer = next(self.answers, None)
        if answer is None:
            self._end()
            return {}
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    def run(self, batch: Callable[[], object], quiet_us: int) -> None:
        self.epochs_and_ticks.append(("rows", self.clock.now, quiet_us / 1e6))
        self.clock.now += self.epoch_s

    def expect_next(self) -> None:
        self.epochs = len(self.epochs_and_ticks)

    def tick(self, quiet_us: int) -> None:
        self.epochs_and_ticks.append(("tick", self.clock.now, quiet_us / 1e6))

    def run_until_end(self, available_now: bool = False) -> None:
        run_loops.PollingLoop(self, self, available_now)._run_epochs()  # type: ignore[arg-type]


ROWS, NOTHING = {"events": object()}, dict[str, Any]()


def test_rows_are_read_immediately_and_all_silence_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def script() -> Iterator[Any]:
        yield from [ROWS, ROWS]
        while clock.now < 1600:
            yield NOTHING
        yield ROWS

    clock = FakeClock(monkeypatch)
    run = ScriptedRun(clock, script)
    run.run_until_end()
    assert [kind for kind, *_ in run.epochs_and_ticks[:2]] == ["rows", "rows"]
    assert run.epochs_and_ticks[1][1] == 1000.0, "back to back"
    quiet = sum(s for *_, s in run.epochs_and_ticks)
    assert quiet == pytest.approx(run.epochs_and_ticks[-1][1] - 1000, abs=1e-3), "the whole silence, and nothing twice"
    silent = run.poll_times[2:-2]  # the last poll but one returned rows
    pauses = [b - a for a, b in pairwise(silent)]
    assert pauses[0] == pytest.approx(0.01)
    assert max(pauses) == pytest.approx(1.0)
    assert all(s >= 0.5 for kind, _, s in run.epochs_and_ticks[2:] if kind == "tick"), (
        "not more often than idle_pause_ms"
    )
    assert len(run.poll_times) < 1200, "less often, the longer it lasts"


def test_suspension_of_the_machine_does_not_count_as_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    def script() -> Iterator[Any]:
        yield NOTHING
        clock.now += 3600
        yield NOTHING
        yield NOTHING

    clock = FakeClock(monkeypatch)
    run = ScriptedRun(clock, script, pause_ms=500)
    run.run_until_end()
    assert 0 < sum(s for *_, s in run.epochs_and_ticks) <= 8


def test_source_without_rows_counts_as_silent_during_busy_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs follow each other without a pause. A source that has no rows at any poll is silent all the time."""
    run = ScriptedRun(FakeClock(monkeypatch), lambda: iter([ROWS] * 30), epoch_s=1.0)
    run.run_until_end()
    assert [(kind, s) for kind, _, s in run.epochs_and_ticks] == [("rows", 0.0), *[("rows", 1.0)] * 29]


def test_only_a_part_of_a_slow_epoch_counts_as_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ScriptedRun(FakeClock(monkeypatch), lambda: iter([ROWS, NOTHING]), pause_ms=100, epoch_s=10.0)
    run.run_until_end()
    assert [(kind, s) for kind, _, s in run.epochs_and_ticks] == [("rows", 0.0), ("tick", 0.4)]


def test_timed_triggers_poll_at_whole_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    def script() -> Iterator[Any]:
        yield ROWS
        clock.now += 25.0  # a slow epoch: the next interval has passed
        yield from [ROWS, NOTHING, NOTHING]

    clock = FakeClock(monkeypatch)
    clock.now = 1003.0
    run = ScriptedRun(clock, script, every_ms=10_000)
    run.run_until_end()
    assert run.poll_times == [1003.0, 1010.0, 1035.0, 1040.0, 1050.0]
    assert [(kind, s) for kind, _, s in run.epochs_and_ticks] == [
        ("rows", 0.0),
        ("rows", 7.0),
        ("tick", 10.0),
        ("tick", 5.0),
    ]


def test_setting_the_clock_back_delays_a_trigger_by_at_most_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    def script() -> Iterator[Any]:
        clock.now -= 3600.0  # while the sources were polled
        yield ROWS
        yield ROWS

    clock = FakeClock(monkeypatch)
    clock.now = 10_003.0
    run = ScriptedRun(clock, script, every_ms=10_000)
    run.run_until_end()
    assert run.poll_times[:2] == [10_003.0, 6_413.0]


def test_the_end_of_the_input_ends_the_run_without_waiting_for_a_trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ScriptedRun(FakeClock(monkeypatch), lambda: iter([ROWS, ROWS, NOTHING, ROWS]), every_ms=60_000)
    run.run_until_end(available_now=True)
    assert [kind for kind, *_ in run.epochs_and_ticks] == ["rows", "rows"]
    assert run.poll_times == [1000.0] * 3, "no trigger is waited for"


def test_stopped_loop_does_not_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ScriptedRun(FakeClock(monkeypatch), lambda: iter([ROWS]))
    run._end()
    run.run_until_end()
    assert (run.poll_times, run.epochs_and_ticks) == ([], [])


def test_unavailable_source_is_polled_again_and_does_not_count_as_silent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away = SourceUnavailableError(StartError("Kafka is away"))

    def script() -> Iterator[Any]:
        yield ROWS
        yield from [away] * 60
        while clock.now < 1062:
            yield NOTHING

    clock = FakeClock(monkeypatch)
    run = ScriptedRun(clock, script)
    run.run_until_end()
    assert run.epochs_and_ticks[0][0] == "rows"
    assert sum(s for *_, s in run.epochs_and_ticks[1:]) < 3, "only the time after the answer"
    assert [r.getMessage() for r in caplog.records] == ["p: Kafka is away; the run retries for two minutes"]


@pytest.mark.parametrize("before", [[], [ROWS]])
def test_source_that_stays_unavailable_fails_the_run(monkeypatch: pytest.MonkeyPatch, before: list[Any]) -> None:
    away = SourceUnavailableError(StartError("Kafka is away"))
    run = ScriptedRun(FakeClock(monkeypatch), lambda: iter([*before, *[away] * 1000]))
    with pytest.raises(StartError, match="Kafka is away"):
        run.run_until_end()
    assert (len(run.poll_times) > 100) == bool(before), "the first poll ends the run immediately"


def test_interrupted_run_finishes_its_current_epoch() -> None:
    """The thread of the caller is interrupted while the epoch runs in another thread."""
    begun, ended = threading.Event(), threading.Event()

    class Slow:
        stop = threading.Event()
        pipeline = SimpleNamespace(name="p", idle_pause_ms=500, trigger_interval_ms=0)
        driver = SimpleNamespace(state=None)
        check_spark = expect_next = staticmethod(lambda: None)

        def run(self, batch: object, quiet_us: int) -> None:
            begun.set()
            assert self.stop.wait(60)
            ended.set()

    class Asked:
        def next(self) -> Mapping[str, Any]:
            return ROWS

    one = run_loops.PollingLoop(Slow(), Asked(), False)  # type: ignore[arg-type]

    class Interrupted(threading.Thread):
        joined = 0

        def join(self, timeout: float | None = None) -> None:
            self.joined += 1
            if self.joined == 1:
                assert begun.wait(60)
                raise KeyboardInterrupt
            super().join(timeout)

    with pytest.raises(KeyboardInterrupt):
        one.follow(Interrupted)
    assert ended.is_set()
