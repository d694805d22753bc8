"""Timeline of the start, which `slackwater run --timings` prints once."""

from __future__ import annotations

import re
import time
from dataclasses import replace

from tests.support.example_statuses_and_metrics import STATUS

from slackwater.cli.output import StartTimeline
from slackwater.engine.observer import RunSchema


class RecordedNotices(list[str]):
    def add_notice(self, level: str, text: str) -> None:
        assert level == "info"
        self.append(text)


def begin_timeline() -> tuple[StartTimeline, RecordedNotices]:
    notices = RecordedNotices()
    timeline = StartTimeline(notices.add_notice, time.monotonic() - 2)
    timeline.on_spark()
    timeline.on_schema(RunSchema({}, {}))
    return timeline, notices


def test_the_first_commit_prints_the_timeline_once() -> None:
    timeline, notices = begin_timeline()
    timeline.on_commit(STATUS)
    assert not notices, "a commit of an earlier run"
    timeline.on_running()
    timeline.on_commit(replace(STATUS, epoch=7, rows=1000, phases={"plan": 0.01, "ingest": 3.12, "write": 0.5}))
    timeline.on_commit(STATUS)
    timeline.on_end(None)
    (text,) = notices
    head, *lines = text.splitlines()
    assert head.endswith("in seconds since the command began:")
    assert [re.sub(r"^ +2\.\d  ", "", line) for line in lines] == [
        "Spark runs",
        "the SQL is bound to the sources",
        "sources and targets are open",
        "epoch 7 is committed: 1,000 rows; ingest 3.1, write 0.5",
    ]


def test_run_without_a_commit_prints_the_timeline_at_its_end() -> None:
    for error, line in ((None, "the run ends"), (ValueError(), "the run fails")):
        timeline, notices = begin_timeline()
        timeline.on_end(error)
        assert notices[0].splitlines()[-1].endswith(line)
