"""Test that `slackwater show` prints published rows of every kind of target in window order, and follows new rows."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
from tests.support import show_command_targets as published_places
from tests.support.show_command_targets import NINE, PLACES, ShowCommandTarget

from slackwater.cli import main as cli
from slackwater.cli import results
from slackwater.connectors.kafka import connector as kafka_reader
from slackwater.connectors.postgres import connector as postgres_reader
from slackwater.connectors.postgres.connector import PostgresResultReader
from slackwater.query import why_report_builder
from slackwater.query.results import result_reader, sort_by_start

place_at = published_places.show_command_target_factory


def run_show(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> tuple[int, str, str]:
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["slackwater", "show", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out = capsys.readouterr()
    return int(ended.value.code or 0), out.out, out.err


@pytest.mark.parametrize("place", PLACES)
def test_show_prints_the_newest_rows_in_window_order(
    place_at: Callable[[str], ShowCommandTarget],
    place: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = place_at(place)
    nothing = f"p: nothing published yet; start it with: slackwater run {output.file}; to see what it waits for, run: slackwater why"
    code, out, err = run_show(monkeypatch, capsys, output.file)
    assert (code, out) == (0, "")
    assert err.startswith(nothing)
    output.publish((2, "b", 5), (2, None, 1))
    output.publish((0, "a", 10), (1, "\x1b[2Jc", 2))
    code, out, err = run_show(monkeypatch, capsys, output.file)
    assert (code, err) == (0, "")
    head, *rows = out.splitlines()
    assert head.split() == [f.name for f in output.logic.output]
    users = [r.split()[head.split().index("user")] for r in _join_date_and_time(rows)]
    assert users == ["a", r"\x1b[2Jc", "NULL", "b"], "oldest window first; nothing that a terminal obeys"
    assert "2024-03-01_09:00:00Z" in _join_date_and_time(rows)[0]
    code, out, err = run_show(monkeypatch, capsys, output.file, "--limit", 3, "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert [(r["user"], int(r["n"])) for r in records] == [("\x1b[2Jc", 2), (None, 1), ("b", 5)]
    assert records[0]["window_start"] == "2024-03-01T09:01:00Z"
    assert run_show(monkeypatch, capsys, output.file, "-n", 3)[2] == "(the newest 3 rows of 4; more with --limit)\n"
    assert run_show(monkeypatch, capsys, output.file, "-n", 4)[2] == ""


def test_show_gives_no_exact_count_beyond_the_count_limit(
    place_at: Callable[[str], ShowCommandTarget], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Count the rows of a database table up to a limit. Read only the end of a topic."""
    table = place_at("postgres")
    table.publish(*((minute, "a", 1) for minute in range(7)))
    monkeypatch.setattr(postgres_reader, "MAX_COUNTED", 5)
    assert (
        run_show(monkeypatch, capsys, table.file, "-n", 2)[2]
        == "(the newest 2 rows of more than 5; more with --limit)\n"
    )
    monkeypatch.setattr(postgres_reader, "MAX_COUNTED", 7)
    assert run_show(monkeypatch, capsys, table.file, "-n", 2)[2] == "(the newest 2 rows of 7; more with --limit)\n"
    topic = place_at("kafka")
    topic.publish(*((minute, f"u{minute}", 1) for minute in range(40)))
    assert run_show(monkeypatch, capsys, topic.file, "-n", 2)[2] == "(the newest 2 rows of 40; more with --limit)\n"
    monkeypatch.setattr(kafka_reader, "TAIL", 4)
    assert run_show(monkeypatch, capsys, topic.file, "-n", 2)[2] == "(the newest 2 rows; more with --limit)\n"


def _join_date_and_time(rows: Sequence[str]) -> list[str]:
    return [r.replace("-01 ", "-01_") for r in rows]


@pytest.mark.parametrize("place", PLACES)
def test_result_reader_poll_returns_each_newly_published_row_once(
    place_at: Callable[[str], ShowCommandTarget], place: str
) -> None:
    """Return only new rows, without rows of an earlier poll and rows that a merge rewrote unchanged."""
    output = place_at(place)
    results = result_reader(output.pipeline)
    assert results.read(limit=10) is None

    def fresh() -> list[tuple[Any, int]]:
        frame = results.poll()
        return [] if frame is None else sorted(((u, int(n)) for u, n in frame.select("user", "n").iter_rows()), key=str)

    assert fresh() == []
    output.publish((0, "a", 1), (0, "b", 1))
    assert fresh() == [("a", 1), ("b", 1)]
    assert fresh() == []
    output.publish((1, "a", 2))
    output.publish((1, "b", 3))
    assert fresh() == [("a", 2), ("b", 3)]
    if place in ("delta", "iceberg", "postgres", "kafka"):
        output.publish((0, "b", 9), gone=[(1, "a", 2)])
        assert fresh() == [("b", 9)]
        again = result_reader(output.pipeline)
        frame = again.read(limit=10)
        assert frame is not None
        assert sorted(frame.select("user", "n").rows()) == [("a", 1), ("b", 3), ("b", 9)]
        again.close()
    assert fresh() == []
    results.close()


def test_show_follow_prints_newly_published_rows_in_aligned_columns(
    place_at: Callable[[str], ShowCommandTarget], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Columns keep their position, and Ctrl-C ends the command silently."""
    output = place_at("parquet")
    output.publish((0, "somebody", 1))
    script = iter([lambda: output.publish((1, "a", 2)), lambda: None, lambda: output.publish((2, "b", 12345))])

    def pause() -> None:
        step = next(script, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr(results, "_pause", pause)
    code, out, err = run_show(monkeypatch, capsys, output.file, "--follow")
    assert (code, err) == (130, "")
    head, *rows = out.splitlines()
    assert len(rows) == 3
    start = head.index("window_start")
    assert all(r[start : start + 4] == "2024" for r in rows)


def test_show_exits_silently_when_its_output_pipe_is_closed(place_at: Callable[[str], ShowCommandTarget]) -> None:
    output = place_at("parquet")
    output.publish(*((n % 60, f"u{n}", n) for n in range(5000)))
    command = [sys.executable, "-m", "slackwater.cli.main", "show", str(output.file), "--limit", "5000"]
    shown = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert shown.stdout is not None and shown.stderr is not None
    shown.stdout.readline()
    shown.stdout.close()
    assert shown.stderr.read() == ""
    shown.stderr.close()
    assert shown.wait(30) == 0


def test_show_ignores_files_of_other_pipelines_in_the_same_directory(
    place_at: Callable[[str], ShowCommandTarget], tmp_path: Path
) -> None:
    output = place_at("parquet")
    output.publish((0, "a", 1))
    for name in ("p-letters-000000000", "q-000000000", "pp-000000001"):
        (tmp_path / "out" / f"{name}.parquet").write_bytes((tmp_path / "out" / "p-000000000.parquet").read_bytes())
    rows = result_reader(output.pipeline).read(limit=10)
    assert rows is not None
    assert rows.height == 1


def test_concurrent_writers_cause_neither_missed_nor_repeated_rows(
    place_at: Callable[[str], ShowCommandTarget], postgres: Any
) -> None:
    """Transactions overlap the reads, and each row appears in exactly one read."""
    output = place_at("postgres")
    output.publish((0, "a", 0))
    results = result_reader(output.pipeline)
    seen = [] if (first := results.read(limit=10_000)) is None else first["n"].to_list()
    url, done = str(output.pipeline.connections["out"].url), threading.Event()  # type: ignore[union-attr]

    def write(worker: int) -> None:
        with psycopg.connect(url) as db:
            for n in range(100):
                with db.transaction():
                    number = 1 + worker * 100 + n
                    start = NINE + dt.timedelta(minutes=number)
                    db.execute(
                        'INSERT INTO clicks ("user", n, window_start, window_end) VALUES (%s, %s, %s, %s)',
                        ("x", number, start, start),
                    )

    writers = [threading.Thread(target=write, args=(w,)) for w in range(3)]
    for w in writers:
        w.start()
    while not done.is_set():
        if not any(w.is_alive() for w in writers):
            done.set()
        new_rows = results.poll()
        seen += [] if new_rows is None else new_rows["n"].to_list()
    assert sorted(seen) == list(range(301))


def test_rows_without_windows_are_returned_in_write_order(postgres: Any) -> None:
    """Return rows of a join in the order of their transactions, even if a column has the name of an internal helper."""
    url = postgres.database(f"show{uuid.uuid4().hex[:8]}")
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("CREATE TABLE joined (top int, s text)")
        for n in (3, 1, 2, 9, 5):
            db.execute("INSERT INTO joined VALUES (%s, 'x')", (n,))
        results = PostgresResultReader(url, "joined", None)
        newest = results.read(limit=3)
        assert newest is not None
        assert sort_by_start(newest, None)["top"].to_list() == [1, 2, 9, 5], (
            "one more than asked for says that there are more"
        )
        db.execute("INSERT INTO joined VALUES (4, 'y')")
        fresh = results.poll()
        assert fresh is not None
        assert fresh.rows() == [(4, "y")]


def test_show_reports_unreadable_targets_with_a_one_line_error(
    place_at: Callable[[str], ShowCommandTarget],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    code, out, err = run_show(monkeypatch, capsys, place_at("console").file)
    assert (code, out) == (1, "")
    assert (
        err == "error: p: its target is the console, which does not store rows; name another connection in [target]\n"
    )
    output = place_at("parquet")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "p-000000000.parquet").write_bytes(b"PAR1 no")
    code, out, err = run_show(monkeypatch, capsys, output.file)
    assert code == 1
    assert err.startswith(f"error: {tmp_path}/out/p-000000000.parquet: cannot be read as parquet (")
    assert err.count("\n") == 1
    text = output.file.read_text()
    (tmp_path / "far.toml").write_text(
        text.replace('[connections.out]\nkind = "files"', '[connections.out]\nkind = "postgres"\nurl = "postgresql://me:hunter2@127.0.0.1:1/x"')
        .replace(f'path = "{tmp_path}/out"\nformat = "parquet"', 'table = "t"')
    )  # fmt: skip
    code, out, err = run_show(monkeypatch, capsys, tmp_path / "far.toml")
    assert code == 1
    assert "127.0.0.1:1/x" in err
    assert "hunter2" not in err
    assert err.count("\n") == 1


def test_show_imports_neither_pyspark_nor_sqlglot(place_at: Callable[[str], ShowCommandTarget]) -> None:
    output = place_at("parquet")
    output.publish((0, "a", 1))
    code = (
        "import sys; sys.argv = ['slackwater', 'show', sys.argv[1]]\n"
        "from slackwater.cli.main import app\n"
        "try: app()\n"
        "finally: assert not [m for m in sys.modules if m.split('.')[0] in ('pyspark', 'sqlglot')]"
    )
    done = subprocess.run([sys.executable, "-c", code, str(output.file)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2024-03-01 09:00:00Z" in done.stdout


@pytest.mark.parametrize("place", PLACES)
def test_key_history_returns_the_latest_results_of_one_key(
    place: str, place_at: Callable[[str], ShowCommandTarget]
) -> None:
    """Cover every kind of target, and the key NULL."""
    output = place_at(place)
    output.publish((0, "u1", 1), (0, "u2", 2), (0, None, 3), (2, "u1", 4))
    output.publish((1, "u1", 5), (3, "it's", 6))

    def counts(user: str | None, limit: int = 5) -> list[int]:
        key = pl.DataFrame({"user": [user]}, schema={"user": pl.String})
        (results,) = why_report_builder.read_key_history(
            output.pipeline, "transform", output.logic.keys, key, limit
        ).results
        assert results.problem is None
        return [int(row["n"]) for row in results.rows]

    assert (counts("u1"), counts("u1", 2), counts(None), counts("it's")) == ([1, 5, 4], [5, 4], [3], [6])
    assert counts("nobody") == []


def test_key_history_reports_an_unreadable_target_as_a_problem(place_at: Callable[[str], ShowCommandTarget]) -> None:
    output = place_at("console")
    key = pl.DataFrame({"user": ["u1"]})
    history = why_report_builder.read_key_history(output.pipeline, "transform", output.logic.keys, key)
    assert "its target is the console, which does not store rows" in str(history.results[0].problem)
