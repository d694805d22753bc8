"""Benchmark figures without Spark: from single runs to ratios to the lines of a report."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest
from benchmarks import (
    compare_reports,
    driver_cost_per_epoch,
    large_state,
    long_run,
    no_op_step_baseline,
    report,
    run_statistics,
    simulated_shards_and_brokers,
)
from benchmarks.benchmark_cases import (
    CASES,
    EPOCHS,
    FEW_EPOCHS,
    FLOOR,
    HDFS,
    MEASURED,
    ROCKSDB,
    SLACKWATER,
    WARM_UP,
    EventStream,
    OrderStream,
    shrink_stream,
)
from benchmarks.driver_cost_per_epoch_plot import draw_driver_cost as draw_shards
from benchmarks.event_files import FILES_PER_EPOCH, SIDES, START, generate_epoch_frames, write_stream_files
from benchmarks.job_runner import BatchProgressListener, StatusLog, collect_epochs
from benchmarks.kafka_topics import PARTITIONS, EventTopic, encode_json_records
from benchmarks.long_run_plot import draw_long_run
from benchmarks.peers import peer_report as peers_report
from benchmarks.peers import workloads
from benchmarks.run import PARTS, RESULTS, main
from benchmarks.worker_process import ROLES

CASE = CASES[0]


def build_measured_run(system: str, seconds: float, cpu: float, output: Any = None) -> dict[str, Any]:
    """Build a run of ten epochs of this duration. The first epochs take ten times as long."""
    spans = [seconds * 10] * WARM_UP + [seconds] * (10 - WARM_UP)
    return {
        "epochs": [{"seconds": s, "cpu_s": cpu, "rows": 100, "durations": {}} for s in spans],
        "statuses": [],
        "memory": dict.fromkeys(ROLES, 300 * 1024**2),
        "state_on_disk": 0,
        "output": output or {"rows": 7, "counted": 70},
        "system": system,
    }


def compare_runs(**changed: dict[str, Any]) -> dict[str, Any]:
    runs = {
        HDFS: build_measured_run(HDFS, 8.0, 9.0),
        ROCKSDB: build_measured_run(ROCKSDB, 6.0, 8.0),
        SLACKWATER: build_measured_run(SLACKWATER, 1.5, 2.0),
        FLOOR: build_measured_run(FLOOR, 1.2, 1.0, {"rows": 1, "counted": 1}),
    } | changed
    return run_statistics.compare_systems(
        CASE, {name: run_statistics.summarize_runs([measured], WARM_UP) for name, measured in runs.items()}
    )


def build_case_report(case: dict[str, Any]) -> dict[str, Any]:
    """Build a report of one case."""
    parts = dict.fromkeys(key for key, _ in PARTS.values())
    machine = run_statistics.describe_machine() | {"load_after": 1.5}
    return {"machine": machine, "options": {"quick": False}, "cases": [case], "failed": [], "took_s": 240.0, **parts}


def render_case_report(case: dict[str, Any]) -> list[str]:
    return list(report.format_report(build_case_report(case)))


def find_report_row(report_lines: list[str], heading: str, name: str) -> str:
    """Return the line of a case in the table below a heading."""
    begins = next(i for i, line in enumerate(report_lines) if heading in line)
    return next(line for line in report_lines[begins:] if line.startswith(name))


def test_epochs_are_compared_with_the_faster_native_store_and_the_floor_baseline() -> None:
    case = compare_runs()
    assert case["ratio"] == pytest.approx(4.0)
    assert case["times_floor"]["median_s"] == pytest.approx(1.25)
    assert case["times_floor"]["cpu_s"] == pytest.approx(2.0)
    assert (case["met"], case["floor_met"], case["same_output"]) == (True, True, True)


def test_report_shows_ratios_to_native_store_and_floor_baseline_with_their_goals() -> None:
    report_lines = render_case_report(compare_runs())
    assert find_report_row(report_lines, "faster native store", CASE.name).split()[1:6] == [
        "8.00",
        "6.00",
        "1.50",
        "133,333",
        "4.00",
    ]
    assert find_report_row(report_lines, "Ratio to the floor", CASE.name).split()[1:4] == ["1.20", "1.50", "1.25"]
    assert find_report_row(report_lines, "Ratio to the floor", CASE.name).split()[-4:] == [
        f"{CASE.floor:g}",
        "1.00",
        "2.00",
        "met",
    ]


def test_epoch_much_slower_than_the_floor_baseline_misses_its_goal() -> None:
    case = compare_runs(**{FLOOR: build_measured_run(FLOOR, 0.5, 1.0)})
    assert not case["floor_met"]
    assert find_report_row(render_case_report(case), "Ratio to the floor", CASE.name).endswith("MISSED")


def test_differing_outputs_of_engines_are_reported_except_for_the_floor_baseline() -> None:
    assert compare_runs()["same_output"]
    differing = compare_runs(**{ROCKSDB: build_measured_run(ROCKSDB, 6.0, 8.0, {"rows": 8, "counted": 70})})
    assert not differing["same_output"]
    (warning,) = [line for line in render_case_report(differing) if "OUTPUTS DIFFER" in line]
    assert warning.startswith(CASE.name)


def test_every_case_has_enough_epochs_for_all_four_engines() -> None:
    assert set(MEASURED) == {HDFS, ROCKSDB, SLACKWATER, FLOOR}
    assert all(case.stream.epochs >= EPOCHS == 25 for case in CASES if case.goal or case.floor or case.seconds)
    assert all(case.stream.epochs >= FEW_EPOCHS == 15 for case in CASES)
    assert all(shrink_stream(case.stream).epochs > WARM_UP for case in CASES)


def test_floor_baseline_reads_the_files_of_each_epoch_from_every_source(tmp_path: Path) -> None:
    alone = write_stream_files(EventStream(10, 20, epochs=2), tmp_path)
    assert [[len(paths) for paths in epoch] for epoch in no_op_step_baseline.iterate_epoch_files(alone)] == [
        [FILES_PER_EPOCH]
    ] * 2
    both = write_stream_files(OrderStream(20, step_s=5, within_s=3, epochs=3), tmp_path)
    epochs = list(no_op_step_baseline.iterate_epoch_files([both / side for side in SIDES]))
    assert [[p.parent.name for p in paths][:1] for epoch in epochs for paths in epoch] == [["orders"], ["payments"]] * 3
    assert [paths[0].name for paths in epochs[2]] == ["00002-0.parquet"] * 2


def test_duration_of_a_slackwater_epoch_is_measured_between_two_statuses() -> None:
    status_times = StatusLog()
    for rows in (5, 0, 7):
        status_times(SimpleNamespace(rows=rows))  # type: ignore[arg-type]
    assert len(status_times.ends) == 3
    status_times.ends = [100.0, 101.5, 103.25]
    measured = collect_epochs(BatchProgressListener(), status_times)
    assert [(b["rows"], b["began"], b["seconds"]) for b in measured] == [(5, 100.0, 1.5), (7, 101.5, 1.75)]


def test_native_operator_epochs_are_those_that_spark_reports() -> None:
    progress = BatchProgressListener()
    progress.terminated.set()
    progress.batches = [{"rows": 3}]
    assert collect_epochs(progress, StatusLog()) == [{"rows": 3}]


def test_a_case_without_a_goal_is_neither_met_nor_missed() -> None:
    case = compare_runs() | {"goal": None, "met": None, "floor_goal": None, "floor_met": None}
    assert find_report_row(render_case_report(case), "faster native store", CASE.name).split()[-1] == "-"
    assert find_report_row(render_case_report(case), "Ratio to the floor", CASE.name).split()[-3:] == [
        "-",
        "1.00",
        "2.00",
    ]


def test_a_small_epoch_has_a_goal_in_seconds() -> None:
    (epoch_line,) = [
        line for line in render_case_report(compare_runs() | {"seconds_goal": 0.4}) if "An epoch of" in line
    ]
    assert epoch_line.strip() == "An epoch of 200,000 rows: 1.50 s, goal 0.4  MISSED; 2.00 s of CPU"


def test_failed_cases_are_reported() -> None:
    report_lines = list(report.format_report(build_case_report(compare_runs()) | {"failed": ["tiny-2k"]}))
    assert report_lines[-2:] == [
        "\nFAILED, not measured: tiny-2k",
        "\nThe whole run took 4 minutes; load 1.5 at the end",
    ]


def test_release_report_has_figures_without_single_runs(tmp_path: Path) -> None:
    of_release = run_statistics.drop_single_runs(build_case_report(compare_runs()))
    assert "runs" not in json.dumps(of_release)
    assert compare_reports.collect_system_measurements(of_release) == compare_reports.collect_system_measurements(
        build_case_report(compare_runs())
    )
    assert compare_reports.collect_system_measurements(of_release)[
        CASE.name, FLOOR
    ] == compare_reports.SystemMeasurements(1.2, 1.0, 300)


@pytest.mark.parametrize("name", ["latest", "../x", "", ".x"])
def test_keep_option_rejects_an_invalid_release_name(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["run", "--keep", name])
    with pytest.raises(SystemExit):
        main()
    assert f'"{name}" is not a name of a release' in capsys.readouterr().err
    assert RESULTS.name == "results"


def write_reports(tmp_path: Path, **machine: Any) -> list[str]:
    """Write two reports. The second one is twice as fast, on a machine that differs in `machine`."""
    old, new = (
        build_case_report(compare_runs()),
        build_case_report(compare_runs(**{SLACKWATER: build_measured_run(SLACKWATER, 0.75, 1.0)})),
    )
    new["machine"] |= machine
    for name, content in (("old", old), ("new", new)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return [str(tmp_path / f"{name}.json") for name in ("old", "new")]


def test_two_reports_are_compared_case_by_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare_reports.main(write_reports(tmp_path, load_before=17.25)) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("old: ") and "load 17.2 before and 1.5 after" in printed[1]
    (slackwater_row,) = [
        line.split() for line in printed if line.startswith(f"{CASE.name} ") and f" {SLACKWATER} " in line
    ]
    assert slackwater_row[2:] == ["1.50", "0.75", "0.50", "2.00", "1.00", "0.50", "300", "300", "1.00"]
    floor_rows = [line.split() for line in printed if line.startswith(f"{CASE.name} ") and f" {FLOOR} " in line]
    assert floor_rows[1][2:] == ["1.25", "0.62", "0.50"]  # relative to the floor of the same run


def test_different_machines_are_compared_only_with_the_unlike_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = write_reports(tmp_path, cores=64)
    assert compare_reports.main(both) == 1
    output = capsys.readouterr()
    assert "DIFFERENT MACHINES: cores: " in output.out and "and 64" in output.err
    assert compare_reports.main([*both, "--unlike"]) == 0


def test_a_smoke_test_is_not_compared_with_a_measurement() -> None:
    small = build_case_report(compare_runs()) | {"options": {"quick": True}}
    assert compare_reports.machine_differences(build_case_report(compare_runs()), small) == ["size: full and small"]
    assert compare_reports.machine_differences(small, small) == []


def test_case_in_only_one_report_is_listed_without_a_ratio(tmp_path: Path) -> None:
    old, new = build_case_report(compare_runs()), build_case_report(compare_runs())
    old["cases"] = []
    (line,) = [
        text
        for text in compare_reports.format_comparison(old, new)
        if text.startswith(CASE.name) and f" {FLOOR} " in text
    ]
    assert line.split()[2:5] == ["-", "1.20", "-"]


def test_topic_rows_are_distributed_evenly_over_partitions() -> None:
    topic = EventTopic("127.0.0.1:1", "events", 24_000, 25)
    assert topic.epoch_offsets(0) == {"events": {str(p): 0 for p in range(PARTITIONS)}}
    assert set(topic.epoch_offsets(3)["events"].values()) == {6_000}
    assert topic.is_whole_epoch(23_988) and not topic.is_whole_epoch(312)
    (first,) = encode_json_records(next(generate_epoch_frames(EventStream(10, 1, epochs=1))))
    assert set(json.loads(first)) == {"k", "ts", "v"} and json.loads(first)["ts"].endswith("500Z")


def build_resource_sample(epoch: int, **changed: float) -> long_run.ResourceSample:
    return long_run.ResourceSample(
        **(dict.fromkeys(long_run.FLAT, 2) | {"epoch": epoch, **changed})  # type: ignore[arg-type]
    )


def test_long_run_measures_the_growth_of_resources_over_the_epochs() -> None:
    samples = [
        build_resource_sample(10 * n, open_files=n, state_files=0, seconds=9 if n == 1 else 2) for n in range(1, 41)
    ]
    growth = long_run.compute_growth_by_figure(samples)
    assert growth["open_files"] == (9, 36, 4)  # during the first four epochs, compilers run
    assert growth["seconds"] == (2, 2, 1)
    assert growth["state_files"] == (0, 0, 1)
    assert long_run.compute_growth_by_figure(samples[:1])["seconds"] == (9, 9, 1)


def test_long_run_plot_has_a_line_per_figure() -> None:
    samples = [build_resource_sample(100 * n, open_files=n)._asdict() for n in range(1, 5)]
    plot = ElementTree.fromstring(draw_long_run([sample["epoch"] for sample in samples], samples))
    named = [part.text for part in plot.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Seconds per epoch", "Memory, MiB", "open files: 4", "400"} <= set(named)
    lines_of = list(plot.iter("{http://www.w3.org/2000/svg}polyline"))
    assert len(lines_of) == len(long_run.FLAT) - 2  # except the bytes of the state and the unread files
    ys = [float(y) for y in re.findall(r",([\d.]+)", lines_of[-3].attrib["points"])]
    assert ys == sorted(ys, reverse=True) and len(set(ys)) == 4  # the line rises


def test_long_run_input_writer_creates_files_ahead_and_deletes_old_files(tmp_path: Path) -> None:
    feed = long_run.InputWriter(tmp_path / "in", long_run.TINY)
    assert feed.write_and_remove_files(0) == long_run.AHEAD
    assert len(list((tmp_path / "in").iterdir())) == long_run.AHEAD
    feed.write_and_remove_files(long_run.KEPT + 7)
    epochs = sorted(int(p.stem) for p in (tmp_path / "in").glob("*.parquet"))
    assert epochs == list(range(7, long_run.KEPT + 7 + long_run.AHEAD))
    first, again = (pl.read_parquet(tmp_path / "in" / f"{n:08d}.parquet") for n in (57, 107))
    assert (again["ts"] - first["ts"]).unique().to_list() == [timedelta(seconds=50)]


def test_paced_input_writer_creates_a_file_per_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(long_run.time, "monotonic", lambda: clock[0])
    load = long_run.Load(EventStream(5, 10, step_s=1, epochs=2), gap_s=3, paced=True)
    feed = long_run.InputWriter(tmp_path / "in", load)
    assert feed.write_and_remove_files(0) == 0
    clock[0] += 7.5
    assert feed.write_and_remove_files(5) == 3
    assert len(list((tmp_path / "in").iterdir())) == 8


def build_large_state(keys: int, epoch_s: float) -> large_state.LargeState:
    memory = {"driver_jvm": 500.0, "driver_python": 200.0, "python_workers": 300.0, "total": 1000.0}
    return large_state.LargeState("files", keys, 5e5, epoch_s, 0.5, 1.0, 12.0, memory, 10.0)


@pytest.mark.parametrize(
    ("epoch_s", "verdict"), [(0.65, "1.30 times as long as 1,000,000 (goal 1.3: met)"), (0.7, "MISSED")]
)
def test_large_state_report_compares_the_most_keys_with_a_million(epoch_s: float, verdict: str) -> None:
    results = [build_large_state(1_000_000, 0.5), build_large_state(50_000_000, epoch_s)]
    machine = {"cores": 2, "load_before": 0.1, "load_after": 1.0}
    lines = list(large_state.format_report({"machine": machine, "results": [r._asdict() for r in results]}))
    assert verdict in lines[-1] and "| files | 50,000,000 | 500,000 |" in lines[-2]


def test_large_state_plot_has_a_panel_per_figure() -> None:
    plot = large_state.draw_large_state([build_large_state(100_000, 0.4), build_large_state(10_000_000, 0.6)])
    assert len(list(ElementTree.fromstring(plot).iter("{http://www.w3.org/2000/svg}polyline"))) == 4


def test_large_state_epochs_contain_a_row_per_key(tmp_path: Path) -> None:
    large_state.write_epoch(tmp_path, 3, np.array([5, 7, 9]))
    rows = pl.concat(pl.read_parquet(path) for path in sorted((tmp_path / "in").iterdir()))
    assert sorted(rows["k"]) == ["user-5", "user-7", "user-9"]
    seconds = (rows["ts"] - pl.select(START).item()).dt.total_seconds()
    assert set(seconds) == {3}


def test_generated_records_are_not_late_for_any_peer_engine() -> None:
    records = workloads.generate_topic_records(20_000)
    assert {name: frame.height for name, frame in records.items()} == {
        "events": 20_000,
        "orders": 10_000,
        "payments": 10_000,
    }
    for frame in records.values():
        behind = frame["ts"].cum_max() - frame["ts"]
        assert 0 < behind.max() < 5000  # type: ignore[operator]
    assert all(frame["ts"].max() < workloads.compute_closing_time_ms(records) for frame in records.values())  # type: ignore[operator]


def test_results_of_peers_are_compared_regardless_of_order_and_format() -> None:
    rows = [
        {"k": "a", "window_start": "2024-03-01T00:00:00Z", "window_end": "2024-03-01T00:01:00.000", "n": 2},
        {"n": 1, "k": "b", "window_end": "2024-03-01T00:01:00Z", "window_start": "2024-03-01T00:00:00"},
        {"n": 1, "k": workloads.LAST, "window_end": "2024-03-01T02:01:00Z", "window_start": "2024-03-01T02:00:00Z"},
    ]
    messages = [json.dumps(row).encode() for row in rows]
    start = 1_709_251_200_000
    records = {"events": pl.DataFrame({"k": ["a", "b", "a"], "ts": [start, start + 59_999, start + 7], "v": [1, 2, 3]})}
    expected = workloads.summarize_results(
        workloads.compute_expected_results(workloads.TUMBLING, records), workloads.TUMBLING
    )
    for some in (messages, messages[::-1]):
        assert (
            workloads.summarize_results(workloads.parse_results(iter(some), workloads.TUMBLING), workloads.TUMBLING)
            == expected
        )
    assert (
        workloads.summarize_results(workloads.parse_results(iter(messages[1:]), workloads.TUMBLING), workloads.TUMBLING)
        != expected
    )
    assert (
        workloads.summarize_results(
            workloads.parse_results(iter(messages[:1] * 2), workloads.TUMBLING), workloads.TUMBLING
        )
        != expected
    )


def test_reference_batch_computes_sessions_and_join_pairs() -> None:
    rows = {"k": ["a", "a", "a", "b"], "ts": [0, 30_000, 60_001, 5], "v": [1, 2, 3, 4]}
    sessions = workloads.compute_expected_results(workloads.SESSIONS, {"events": pl.DataFrame(rows)}).sort(
        "k", "window_start"
    )
    assert sessions.rows() == [("a", 0, 60_000, 2, 3, 2), ("a", 60_001, 90_001, 1, 3, 3), ("b", 5, 30_005, 1, 4, 4)]
    orders = pl.DataFrame({"order_id": ["x", "y"], "ts": [100, 100], "amount": [1, 2]})
    paid = pl.DataFrame({"order_id": ["x", "x", "y"], "ts": [100, 300_100, 99], "amount": [5, 6, 7]})
    pairs = workloads.compute_expected_results(workloads.JOIN, {"orders": orders, "payments": paid})
    assert sorted(pairs["paid_amount"]) == [5, 6]


def test_report_shows_slower_faster_failed_and_differing_peer_engines() -> None:
    same = {"rows": 5, "checksum": 7, "cpu_s": 2.0, "memory": 1024**2}
    measured = {
        "machine": run_statistics.describe_machine() | {"load_after": 1.0},
        "rows": {"sessions": 100},
        "works": {
            "sessions": {
                "batch": {"rows": 5, "checksum": 7},
                "slackwater": {**same, "seconds": 4.0},
                "flink": {**same, "seconds": 2.0, "checksum": 8},
                "kafka-streams": {"failed": "a\nb"},
            }
        },
    }
    slackwater, flink, streams = list(peers_report.format_peer_report(measured))[-3:]
    assert slackwater.split() == ["sessions", "slackwater", "4.0", "25", "2.0", "1", "1.00", "5", "yes"]
    assert flink.endswith("DIFFERS  faster than Slackwater") and "0.50" in flink
    assert streams.split() == ["sessions", "kafka-streams", "FAILED:", "b"]
    assert [
        peers_report.results_equal_batch(measured, "sessions", p) for p in ("slackwater", "flink", "kafka-streams")
    ] == [
        True,
        False,
        False,
    ]


def test_memory_above_that_of_the_native_stores_misses_its_goal() -> None:
    assert any(
        f"{CASE.name}: peak 1.00 times" in line and line.endswith("met") for line in render_case_report(compare_runs())
    )
    large = build_measured_run(SLACKWATER, 1.5, 2.0) | {"memory": dict.fromkeys(ROLES, 450 * 1024**2)}
    assert any(
        f"{CASE.name}: peak 1.50 times" in line and line.endswith("MISSED")
        for line in render_case_report(compare_runs(**{SLACKWATER: large}))
    )


def test_first_row_time_and_latency_are_compared_with_goals() -> None:
    measured = build_case_report(compare_runs()) | {
        "first_row_s": {SLACKWATER: 13.0, ROCKSDB: 9.0},
        "latency": {"rows_per_s": 5000, "p50_s": 0.19, "p99_s": 0.4, "windows": 60},
    }
    report_lines = list(report.format_report(measured))
    assert any("slackwater 13.0 s" in line and line.endswith("goal 12 s  MISSED") for line in report_lines)
    assert any("p50 190 ms, goal 200 ms met; p99 400 ms, goal 350 ms MISSED" in line for line in report_lines)


def test_driver_cost_is_measured_with_simulated_shards() -> None:
    figure = driver_cost_per_epoch.measure_driver_cost(2, 3, 4)
    assert (figure.shards, figure.partitions, set(figure.parts)) == (2, 3, set(driver_cost_per_epoch.PARTS))
    assert 0 < figure.parts["commit"] < figure.cpu_s <= figure.longest_cpu_s
    assert figure.segments >= 2
    assert figure.commit_bytes > 1000
    other = figure._replace(shards=driver_cost_per_epoch.AT[0], partitions=driver_cost_per_epoch.AT[1], cpu_s=0.6)
    about = run_statistics.describe_machine() | {"load_after": 1.5}
    content = {"machine": about, "epochs": 4, "figures": [f._asdict() for f in (figure, other)]}
    assert "goal at 256 shards, 1,000 partitions: under 0.5 CPU seconds: MISSED" in list(
        driver_cost_per_epoch.format_report(content)
    )
    tree = ElementTree.fromstring(draw_shards(content["figures"]))
    assert len([e for e in tree.iter() if e.tag.endswith("path") or e.tag.endswith("polyline")]) == 4


def test_simulated_state_segments_are_merged_like_real_segments() -> None:
    assert simulated_shards_and_brokers.simulate_segment_row_counts(700, 100) == [100] * 7
    assert simulated_shards_and_brokers.simulate_segment_row_counts(800, 100) == [800]
    assert sum(simulated_shards_and_brokers.simulate_segment_row_counts(100_000, 100)) == 100_000
    assert simulated_shards_and_brokers.merge_segment_rows([800, *[100] * 8], 1000) == [800, 800]
