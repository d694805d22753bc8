"""The benchmarks' own figures: from runs to ratios to lines, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks import compare, figures, floor, report
from benchmarks.cases import CASES, EPOCHS, FLOOR, HDFS, MEASURED, ROCKSDB, SLACKWATER, WARM_UP, Orders, Stream, quick
from benchmarks.data import FILES_PER_EPOCH, SIDES, frames, generate
from benchmarks.process import ROLES
from benchmarks.run import PARTS, RESULTS, main
from benchmarks.topics import PARTITIONS, Topic, records
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


def whole(case: dict[str, Any]) -> dict[str, Any]:
    """A report of one case."""
    parts = dict.fromkeys(key for key, _ in PARTS.values())
    machine = figures.machine() | {"load_after": 1.5}
    return {"machine": machine, "options": {"quick": False}, "cases": [case], "failed": [], "took_s": 240.0, **parts}


def lines(case: dict[str, Any]) -> list[str]:
    return list(report.lines(whole(case)))


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


def test_what_has_no_goal_is_neither_met_nor_missed() -> None:
    case = compared() | {"goal": None, "met": None, "floor_goal": None, "floor_met": None}
    assert row_of(lines(case), "faster native store", CASE.name).split()[-1] == "-"
    assert row_of(lines(case), "Times the floor", CASE.name).split()[-3:] == ["-", "1.00", "2.00"]


def test_a_small_epoch_has_a_goal_in_seconds() -> None:
    (told,) = [line for line in lines(compared() | {"seconds_goal": 0.4}) if "An epoch of" in line]
    assert told.strip() == "An epoch of 200,000 rows: 1.50 s, goal 0.4  MISSED; 2.00 s of CPU"


def test_what_was_not_measured_is_told() -> None:
    found = list(report.lines(whole(compared()) | {"failed": ["tiny-2k"]}))
    assert found[-2:] == [
        "\nFAILED, not measured: tiny-2k",
        "\nAll of it took 4 minutes; load 1.5 at the end",
    ]


def test_what_is_kept_of_a_release_has_the_figures_and_not_the_runs(tmp_path: Path) -> None:
    of_release = figures.kept(whole(compared()))
    assert "runs" not in json.dumps(of_release)
    assert compare.measured(of_release) == compare.measured(whole(compared()))
    assert compare.measured(of_release)[CASE.name, FLOOR] == compare.Figures(1.2, 1.0, 300)


@pytest.mark.parametrize("name", ["latest", "../x", "", ".x"])
def test_what_is_kept_has_the_name_of_a_release(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["run", "--keep", name])
    with pytest.raises(SystemExit):
        main()
    assert f'"{name}" is no name of a release' in capsys.readouterr().err
    assert RESULTS.name == "results"


def reports(tmp_path: Path, **machine: Any) -> list[str]:
    """Two reports in files; the second half as slow, on a machine that differs in this."""
    old, new = whole(compared()), whole(compared(**{SLACKWATER: run(SLACKWATER, 0.75, 1.0)}))
    new["machine"] |= machine
    for name, told in (("old", old), ("new", new)):
        (tmp_path / f"{name}.json").write_text(json.dumps(told))
    return [str(tmp_path / f"{name}.json") for name in ("old", "new")]


def test_two_reports_are_compared_case_by_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(reports(tmp_path, load_before=17.25)) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("old: ") and "load 17.2 before and 1.5 after" in told[1]
    (mine,) = [line.split() for line in told if line.startswith(f"{CASE.name} ") and f" {SLACKWATER} " in line]
    assert mine[2:] == ["1.50", "0.75", "0.50", "2.00", "1.00", "0.50", "300", "300", "1.00"]
    of_floor = [line.split() for line in told if line.startswith(f"{CASE.name} ") and f" {FLOOR} " in line]
    assert of_floor[1][2:] == ["1.25", "0.62", "0.50"]  # beside the floor of the same run


def test_unlike_machines_are_not_compared_unless_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = reports(tmp_path, cores=64)
    assert compare.main(both) == 1
    told = capsys.readouterr()
    assert "NOT ALIKE in cores: " in told.out and "and 64" in told.err
    assert compare.main([*both, "--unlike"]) == 0


def test_a_smoke_test_is_not_compared_with_a_measurement() -> None:
    small = whole(compared()) | {"options": {"quick": True}}
    assert compare.unlike(whole(compared()), small) == ["size: full and small"]
    assert compare.unlike(small, small) == []


def test_a_case_that_only_one_report_has_stands_alone(tmp_path: Path) -> None:
    old, new = whole(compared()), whole(compared())
    old["cases"] = []
    (line,) = [told for told in compare.lines(old, new) if told.startswith(CASE.name) and f" {FLOOR} " in told]
    assert line.split()[2:5] == ["-", "1.20", "-"]


def test_rows_of_an_epoch_of_a_topic_are_dealt_to_its_partitions_in_turn() -> None:
    topic = Topic("127.0.0.1:1", "events", 24_000, 25)
    assert topic.offsets(0) == {"events": {str(p): 0 for p in range(PARTITIONS)}}
    assert set(topic.offsets(3)["events"].values()) == {6_000}
    assert topic.whole(23_988) and not topic.whole(312)
    (first,) = records(next(frames(Stream(10, 1, epochs=1))))
    assert set(json.loads(first)) == {"k", "ts", "v"} and json.loads(first)["ts"].endswith("500Z")
