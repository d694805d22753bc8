"""The demo without Spark: its click stream, its plot, and its output around two runs."""

from __future__ import annotations

import datetime as dt
import json
import math
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.support.example_statuses_and_metrics import STATUS

from slackwater.cli import demo_kafka
from slackwater.cli.demo import FILES, HOURS, MORNING, generate_clicks, plot_activity
from slackwater.cli.main import main
from slackwater.cli.output import program_command
from slackwater.config import toml
from slackwater.runner.run_options import RunOptions


@pytest.fixture(scope="module")
def clicks_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("day")
    assert generate_clicks(home, 20_000) == 20_000
    return home


def read_clicks(home: Path, source: str) -> list[list[dict[str, Any]]]:
    files = sorted((home / source).glob("*.jsonl"), key=lambda p: p.stat().st_mtime)
    return [[json.loads(text) for text in path.read_text().splitlines()] for path in files]


def compute_seconds_since_morning(click: dict[str, Any]) -> float:
    return (dt.datetime.fromisoformat(click["ts"]).replace(tzinfo=None) - MORNING).total_seconds()


def test_click_stream_is_deterministic(clicks_folder: Path, tmp_path: Path) -> None:
    generate_clicks(tmp_path, 20_000)
    assert read_clicks(tmp_path, "web") == read_clicks(clicks_folder, "web")
    assert read_clicks(tmp_path, "app") == read_clicks(clicks_folder, "app")


def test_click_stream_has_all_clicks_within_the_day(clicks_folder: Path) -> None:
    all_clicks = [c for source in ("web", "app") for part in read_clicks(clicks_folder, source) for c in part]
    assert len(all_clicks) == 20_000
    assert (
        0
        <= min(map(compute_seconds_since_morning, all_clicks))
        < max(map(compute_seconds_since_morning, all_clicks))
        < HOURS * 3600
    )


def test_app_source_is_silent_after_a_third_of_the_day(clicks_folder: Path) -> None:
    app, web = read_clicks(clicks_folder, "app"), read_clicks(clicks_folder, "web")
    assert (len(app), len(web)) == (math.ceil(FILES / 3), FILES)
    assert max(compute_seconds_since_morning(c) for part in app for c in part) < HOURS * 3600 / 3
    assert max(map(compute_seconds_since_morning, web[-1])) > (HOURS - 1) * 3600


def test_click_stream_is_out_of_order_and_a_few_clicks_are_hours_late(clicks_folder: Path) -> None:
    newest, overtaken, hours_late = 0.0, 0, 0
    for click in (c for part in read_clicks(clicks_folder, "web") for c in part):
        behind = newest - compute_seconds_since_morning(click)
        overtaken += 0 < behind <= 20
        hours_late += behind > 3600
        assert behind <= 20 or behind > 3600
        newest = max(newest, compute_seconds_since_morning(click))
    assert overtaken > 1000
    assert hours_late == 8 * (FILES - 2)


def test_clicks_are_spread_over_users_and_peak_at_noon(clicks_folder: Path) -> None:
    web_clicks = [c for part in read_clicks(clicks_folder, "web") for c in part]
    users = Counter(c["user_id"] for c in web_clicks)
    assert len(users) > 800
    assert users.most_common(1)[0][1] < 0.02 * len(web_clicks)
    hours = Counter(int(compute_seconds_since_morning(c) // 3600) for c in web_clicks)
    assert hours[6] > 1.5 * hours[0]


def test_plot_has_one_column_per_bin_if_all_bins_fit() -> None:
    counts = [0] * 144
    counts[0], counts[72] = 4, 2
    title, *plot, axis = plot_activity(counts, 200)
    assert title == "Clicks per 5 minutes, 06:00 to 18:00, at most 4:"
    assert plot == ["█", "█", "█" + " " * 71 + "█", "█" + " " * 71 + "█"]
    assert axis.split() == ["06:00", "09:00", "12:00", "15:00"]
    assert axis.index("12:00") == 72


@pytest.mark.parametrize(("width", "minutes"), [(144, 5), (143, 10), (80, 10), (60, 15), (12, 60)])
def test_plot_fits_the_width_of_the_terminal(width: int, minutes: int) -> None:
    lines = plot_activity([3] * 144, width)
    assert lines[0].startswith(f"Clicks per {minutes} minutes, ")
    assert all(len(text) <= width for text in lines[1:-1])
    assert max(len(text) for text in lines[1:-1]) == 12 * 60 // minutes


def test_plot_of_a_day_without_clicks_is_empty() -> None:
    assert plot_activity([0] * 144, 80)[1:-1] == ["", "", "", ""]


class FakeEngine:
    """Write results like those of the demo's two pipelines. `runs` are the names of the started pipelines."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    def run(self, pipeline: Any, options: RunOptions) -> Any:
        assert options.available_now
        assert options.flush
        assert options.on_status is not None
        self.runs.append(pipeline.name)
        start = MORNING.replace(tzinfo=dt.UTC)
        out = Path(pipeline.target.path)
        out.mkdir(parents=True)
        columns: dict[str, Any] = {
            "window_start": [start],
            "window_end": [start + dt.timedelta(minutes=5)],
            "clicks": [9],
        }
        if pipeline.name == "demo-sessions":
            columns |= {"user_id": ["u0007"], "pages": [3], "left_at": ["/cart"]}
        pl.DataFrame(columns).write_parquet(out / "0.parquet")
        status = replace(STATUS, pipeline=pipeline.name, files_done=8, files_total=8)
        options.on_status(status)
        return status


def test_demo_prints_a_command_that_the_shell_can_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`make demo` activates no environment, so the demo prints the path of the command."""
    bin_dir = tmp_path / "my env" / "bin"
    bin_dir.mkdir(parents=True)
    (bin_dir / "slackwater").touch()
    monkeypatch.setattr(sys, "executable", str(bin_dir / "python"))
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.chdir(tmp_path)
    assert program_command() == "'my env/bin/slackwater'"
    monkeypatch.chdir(bin_dir)
    monkeypatch.setattr(sys, "executable", "/usr/bin/nowhere/python")
    assert program_command() == "slackwater"
    monkeypatch.setattr(sys, "executable", str(bin_dir / "python"))
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/slackwater")
    assert program_command() == "slackwater"


def test_kafka_demo_with_keep_option_runs_until_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = demo_kafka.inspection_hints(Path("/tmp/x/demo-kafka.toml"), "127.0.0.1:1", "postgresql://a@b/c?d=e&f")
    assert "export KAFKA=127.0.0.1:1 WAREHOUSE_URL='postgresql://a@b/c?d=e&f'\n" in shown
    assert " show /tmp/x/demo-kafka.toml\n" in shown
    before = signal.getsignal(signal.SIGTERM)

    def stop() -> None:
        while signal.getsignal(signal.SIGTERM) is before:
            time.sleep(0.01)
        signal.raise_signal(signal.SIGTERM)

    stopper = threading.Thread(target=stop)
    stopper.start()
    demo_kafka._wait_until_stopped()
    stopper.join()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.fixture
def fake_engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    monkeypatch.setattr("slackwater.runner.run.run_pipeline", fake.run)
    monkeypatch.setattr("slackwater.cli.demo.program_command", lambda: "slackwater")
    monkeypatch.setenv("COLUMNS", "100")
    return fake


def run_demo(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["slackwater", "demo", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_demo_prints_counts_sessions_a_plot_and_next_commands(
    fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "kept"
    assert run_demo(monkeypatch, "--keep", str(home), "--rows", "2000") == 0
    assert fake_engine.runs == ["demo-sessions", "demo-counts"]
    output = capsys.readouterr()
    assert output.err == ""
    for part in (
        f"2,000 clicks from two sources, out of order by up to 20 seconds, in {home}\n",
        "  demo-sessions: 8 of 8 files\n",
        f"950 used, 25 late, 15 refused, 10 bad\n  42 sessions: 40 closed by the watermark, 2 cut at max_session_duration; 12 open; results in {home}/out/counts\n",
        "│ u0007 │ 06:00:00 │ 06:05:00 │ 9      │ 3     │ /cart   │",
        "Clicks per 10 minutes, 06:00 to 18:00, at most 9:\n█\n",
        f"  slackwater show {home}/sessions.toml\n",
        f"  slackwater explain {home}/sessions.toml\n",
        f"  slackwater run {home}/sessions.toml --metrics-port 9187\n",
        f"All files of the demo are in {home}. To delete them: rm -r {home}\n",
    ):
        assert part in output.out


def test_demo_writes_valid_configs(fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "kept"
    assert run_demo(monkeypatch, "--keep", str(home), "--rows", "1000") == 0
    kinds = [toml.load(home / f"{name}.toml").transform.window.kind for name in ("sessions", "counts")]
    assert kinds == ["session", "tumbling"]


def test_demo_rejects_a_directory_that_is_not_empty(
    fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert run_demo(monkeypatch, "--keep", str(tmp_path)) == 1
    assert capsys.readouterr().err == f"error: {tmp_path} is not an empty directory; name a new directory for --keep\n"
    assert fake_engine.runs == []


def test_interrupt_stops_the_demo_before_its_second_pipeline(
    fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(pipeline: Any, options: RunOptions) -> None:
        fake_engine.runs.append(pipeline.name)
        signal.raise_signal(signal.SIGINT)
        assert options.stop is not None
        assert options.stop.wait(10)

    monkeypatch.setattr("slackwater.runner.run.run_pipeline", interrupted)
    assert run_demo(monkeypatch, "--keep", str(tmp_path / "kept"), "--rows", "1000") == 130
    assert fake_engine.runs == ["demo-sessions"]
