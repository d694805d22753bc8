"""The benchmarks' own figures: from runs to ratios to lines, without Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks import figures, floor, report
from benchmarks.cases import CASES, EPOCHS, FLOOR, HDFS, MEASURED, ROCKSDB, SLACKWATER, WARM_UP, Orders, Stream, quick
from benchmarks.data import FILES_PER_EPOCH, SIDES, generate
from benchmarks.process import ROLES
from benchmarks.worker import Progress, Told, epochs

CASE = CASES[0]


def run(system: str, seconds: float, cpu: float, output: Any = None) -> dict[str, Any]:
    """A run of ten epochs that take so long, the first ones ten times as long."""
    spans = [seconds * 10] * WARM_UP + [seconds] * (10 - WARM_UP)
    return {
        "epochs": [{"seconds": s, "cpu_s": cpu, "rows": 100, "durations": {}} for s in spans],
        "statuses": [],
        "memory": dict.fromkeys(ROLES, 300 * 1024**2),
        "state_on_disk": 0,
        "output": output or {"rows": 7, "counted": 70},
        "system": system,
    }


def compared(**changed: dict[str, Any]) -> dict[str, Any]:
    runs = {
        HDFS: run(HDFS, 8.0, 9.0),
        ROCKSDB: run(ROCKSDB, 6.0, 8.0),
        SLACKWATER: run(SLACKWATER, 1.5, 2.0),
        FLOOR: run(FLOOR, 1.2, 1.0, {"rows": 1, "counted": 1}),
    } | changed
    return figures.compared(CASE, {name: figures.summarised([told], WARM_UP) for name, told in runs.items()})


def lines(case: dict[str, Any]) -> list[str]:
    parts = dict.fromkeys(("idle_keys", "skewed", "first_row_s", "in_postgres", "reopen", "latency"))
    return list(report.lines({"machine": figures.machine(), "cases": [case], **parts}))


def row_of(found: list[str], heading: str, name: str) -> str:
    """The line of a case in the table below a heading."""
    begins = next(i for i, line in enumerate(found) if heading in line)
    return next(line for line in found[begins:] if line.startswith(name))


def test_epochs_are_beside_the_faster_native_store_and_over_the_floor() -> None:
    case = compared()
    assert case["ratio"] == pytest.approx(4.0)
    assert case["times_floor"]["median_s"] == pytest.approx(1.25)
    assert case["times_floor"]["cpu_s"] == pytest.approx(2.0)
    assert (case["met"], case["floor_met"], case["same_output"]) == (True, True, True)


def test_both_ratios_stand_in_the_report_with_their_goals() -> None:
    found = lines(compared())
    assert row_of(found, "faster native store", CASE.name).split()[1:6] == ["8.00", "6.00", "1.50", "133,333", "4.00"]
    assert row_of(found, "Times the floor", CASE.name).split()[1:4] == ["1.20", "1.50", "1.25"]
    assert row_of(found, "Times the floor", CASE.name).split()[-4:] == [f"{CASE.floor:g}", "1.00", "2.00", "met"]


def test_an_epoch_far_over_the_floor_is_a_goal_that_was_missed() -> None:
    case = compared(**{FLOOR: run(FLOOR, 0.5, 1.0)})
    assert not case["floor_met"]
    assert row_of(lines(case), "Times the floor", CASE.name).endswith("MISSED")


def test_the_floor_emits_nothing_and_its_counts_are_no_difference() -> None:
    assert compared()["same_output"]
    differing = compared(**{ROCKSDB: run(ROCKSDB, 6.0, 8.0, {"rows": 8, "counted": 70})})
    assert not differing["same_output"]
    assert f"{CASE.name}: OUTPUTS DIFFER" in lines(differing)


def test_every_case_is_measured_by_all_four_for_as_many_epochs() -> None:
    assert set(MEASURED) == {HDFS, ROCKSDB, SLACKWATER, FLOOR}
    assert all(case.stream.epochs >= EPOCHS == 25 for case in CASES)
    assert all(quick(case.stream).epochs > WARM_UP for case in CASES)


def test_the_floor_reads_the_files_of_an_epoch_of_every_source(tmp_path: Path) -> None:
    alone = generate(Stream(10, 20, epochs=2), tmp_path)
    assert [[len(paths) for paths in found] for found in floor.epochs(alone)] == [[FILES_PER_EPOCH]] * 2
    both = generate(Orders(20, step_s=5, within_s=3, epochs=3), tmp_path)
    found = list(floor.epochs([both / side for side in SIDES]))
    assert [[p.parent.name for p in paths][:1] for epoch in found for paths in epoch] == [["orders"], ["payments"]] * 3
    assert [paths[0].name for paths in found[2]] == ["00002-0.parquet"] * 2


def test_epochs_are_from_one_status_to_the_next_where_no_streaming_query_ran() -> None:
    told = Told()
    for rows in (5, 0, 7):
        told(SimpleNamespace(rows=rows))  # type: ignore[arg-type]
    told.at = [100.0, 101.5, 103.0, 103.25]
    found = epochs(Progress(), told)
    assert [(b["rows"], b["began"], b["seconds"]) for b in found] == [(5, 100.0, 1.5), (7, 103.0, 0.25)]


def test_epochs_are_as_spark_reports_them_where_a_streaming_query_ran() -> None:
    heard = Progress()
    heard.started.set()
    heard.terminated.set()
    heard.batches = [{"rows": 3}]
    assert epochs(heard, Told()) == [{"rows": 3}]
