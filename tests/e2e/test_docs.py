"""Every example of the README and of examples/ runs and gives the documented result."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import sys
import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
from confluent_kafka import Producer
from tests.support.case_selection import exhaustive
from tests.support.command import run_command_for_exit_code
from tests.support.markdown_pages import ROOT, read_fenced_block

from slackwater.connectors.kafka import broker as kafka_broker

pytestmark = pytest.mark.spark


@pytest.fixture
def readme_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working directory with the events of the README."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "events").mkdir(parents=True)
    rows = [
        {"user_id": "u1", "page_url": f"/{n % 2}", "event_type": "click", "ts": f"2024-03-01T09:{n:02}:00Z"}
        for n in range(9)
    ]
    rows.append({"user_id": "u1", "page_url": "/x", "event_type": "view", "ts": "2024-03-01T09:30:00Z"})
    (tmp_path / "data" / "events" / "0.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return tmp_path


def read_output_rows(folder: Path) -> list[dict[str, Any]]:
    return pl.concat([pl.read_parquet(p) for p in sorted(folder.glob("*.parquet"))]).to_dicts()


@pytest.mark.usefixtures("spark")
def test_readme_first_pipeline_prints_the_documented_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the commands of the README in the folder that the page names, then `why` and the Python example."""
    folder = tmp_path / "examples" / "sessions"
    shutil.copytree(ROOT / "examples" / "sessions", folder, ignore=shutil.ignore_patterns("out", "state"))
    monkeypatch.chdir(tmp_path / read_fenced_block("", 2).split()[1])
    commands = _slackwater_commands(read_fenced_block("", 3))
    assert [c[0] for c in commands] == ["check", "explain", "run", "show"]
    for arguments in commands:
        capsys.readouterr()
        assert run_command_for_exit_code(monkeypatch, *arguments) == 0
    assert capsys.readouterr().out == read_fenced_block("text")
    others = _slackwater_commands(read_fenced_block("", 4))
    assert [c[0] for c in others] == ["run", "show", "why", "ui"]  # ui: see test_ui_server.py
    assert others[0] == ["run", "sessions.toml"], "until Ctrl-C; see test_continuous_run.py"
    assert run_command_for_exit_code(monkeypatch, *others[2]) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runpy.run_path(str(folder / "sessions.py"), run_name="__main__")
    python, toml = read_output_rows(folder / "out" / "python"), read_output_rows(folder / "out" / "sessions")
    assert python == toml
    assert len(python) == 4
    segments = sorted((folder / "state" / "python" / "user-sessions" / "segments").glob("*.arrow"))
    assert set(pl.concat([pl.read_ipc(s) for s in segments])["user_id"]) == {"u1", "u2", "u3"}


def _slackwater_commands(shown: str) -> list[list[str]]:
    return [line.split("#")[0].split()[1:] for line in shown.splitlines() if line.startswith("slackwater")]


@pytest.mark.usefixtures("spark")
def test_why_and_show_print_the_documented_output(
    readme_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the pipeline of the README and compare with the pages. `…` stands for a time."""
    (readme_directory / "sessions.toml").write_text(read_fenced_block("toml"))
    page = (ROOT / "docs" / "how-no-output.md").read_text()
    (shown,) = re.findall(r"^```\n\$ slackwater (why .*?)```$", page, re.DOTALL | re.MULTILINE)
    arguments, _, text = shown.partition("\n")
    assert run_command_for_exit_code(monkeypatch, "run", "sessions.toml", "--available-now") == 0
    capsys.readouterr()
    assert run_command_for_exit_code(monkeypatch, *arguments.split()) == 0
    assert re.fullmatch(re.escape(text).replace("…", r"[\w:. -]+"), capsys.readouterr().out)
    page = (ROOT / "docs" / "show.md").read_text()
    (shown,) = re.findall(r"^```\n\$ slackwater (show .*?)```$", page, re.DOTALL | re.MULTILINE)
    arguments, _, text = shown.partition("\n")
    assert run_command_for_exit_code(monkeypatch, *arguments.split()) == 0
    assert tuple(capsys.readouterr()) == ("", text)


@pytest.mark.usefixtures("spark")
def test_documented_custom_aggregations_run_in_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Import the aggregations by path from the working directory, also in workers that started elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    page = "docs/aggregations.md"
    (tmp_path / "shop.py").write_text(read_fenced_block("python", page=page))
    (tmp_path / "prices.toml").write_text(read_fenced_block("toml", page=page))
    (tmp_path / "data" / "orders").mkdir(parents=True)
    orders = [("a", 1.5, 1), ("a", 3.0, 2), ("a", 2.0, 0), ("a", None, 5), ("a", 9.0, None), ("b", None, None)]
    for n, (shop, price, quantity) in enumerate(orders):
        row = {"shop": shop, "price": price, "quantity": quantity, "ts": f"2024-03-01T09:{n:02}:00Z"}
        (tmp_path / "data" / "orders" / f"{n}.jsonl").write_text(json.dumps(row) + "\n")
    assert run_command_for_exit_code(monkeypatch, "check", "prices.toml") == 0
    assert run_command_for_exit_code(monkeypatch, "explain", "prices.toml") == 0
    assert run_command_for_exit_code(monkeypatch, "run", "prices.toml", "--available-now", "--flush") == 0
    prices = {r["shop"]: (r["mean_price"], r["largest"]) for r in read_output_rows(tmp_path / "out" / "prices")}
    assert prices == {"a": (2.5, [9.0, 3.0]), "b": (None, [])}


@exhaustive(beside="test_docs_start_pages.py::test_config_of_the_learn_page_writes_its_first_table")
@pytest.mark.usefixtures("spark")
def test_readme_tour_reads_kafka_and_writes_postgres(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kafka: Any, postgres: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the README tour with its SQL. `check --connect` reports a missing topic and a table that does not fit."""
    url = postgres.database("tour")
    monkeypatch.setenv("KAFKA", kafka.address)
    monkeypatch.setenv("WAREHOUSE_URL", url)
    file = tmp_path / "orders.toml"
    file.write_text(read_fenced_block("toml", 1))
    check = ("check", str(file), "--connect")
    assert run_command_for_exit_code(monkeypatch, *check) == 1
    assert 'there is no topic "orders"' in capsys.readouterr().err
    kafka.create("orders", 2)
    assert run_command_for_exit_code(monkeypatch, *check) == 0
    with psycopg.connect(url) as db:
        db.execute("CREATE TABLE orders_per_minute (window_start timestamptz, shop int)")
    assert run_command_for_exit_code(monkeypatch, *check) == 1
    errors = capsys.readouterr().err.strip().splitlines()
    assert any('column "shop" is integer, expected text' in line for line in errors)
    assert all(line.startswith(("error: orders-per-minute: ", "orders-per-minute: ")) for line in errors)
    with psycopg.connect(url) as db:
        db.execute("DROP TABLE orders_per_minute")
    producer = Producer({"bootstrap.servers": kafka.address})
    for n, value in enumerate(['{"shop": "a", "amount": 1.25}', '{"shop": "a", "amount": 2.5}', "broken"]):
        producer.produce("orders", value, partition=0, timestamp=1_700_000_000_000 + n)
    assert producer.flush(30) == 0
    assert run_command_for_exit_code(monkeypatch, "explain", str(file)) == 0
    assert "exactly once: state, offsets and output are one transaction" in capsys.readouterr().out
    assert run_command_for_exit_code(monkeypatch, "run", str(file), "--available-now") == 0
    look = read_fenced_block("sql").replace("-- the open windows, typed columns", "")
    with psycopg.connect(url) as db:
        windows, offsets = (db.execute(q).fetchall() for q in look.split(";")[:2])
        assert [r[1] for r in windows] == ["a"]
        assert ("orders", "orders-0", "3") in [r[:3] for r in offsets]
    assert run_command_for_exit_code(monkeypatch, "run", str(file), "--available-now", "--flush") == 0
    assert "results in Postgres table public.orders_per_minute" in capsys.readouterr().out
    with psycopg.connect(url) as db:
        assert db.execute("SELECT shop, orders, revenue FROM orders_per_minute").fetchall() == [
            ("a", 2, Decimal("3.75"))
        ]
        assert db.execute("SELECT reason, value FROM orders_rejected").fetchall() == [("undecodable", b"broken")]
    capsys.readouterr()
    assert run_command_for_exit_code(monkeypatch, "show", str(file)) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-3:] == ["a", "2", "3.75"]


def test_each_unreachable_service_is_reported_on_a_separate_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kafka_broker, "SECONDS", 0.5)
    monkeypatch.setenv("KAFKA", "127.0.0.1:1")
    monkeypatch.setenv("WAREHOUSE_URL", "postgresql://me:hunter2@127.0.0.1:1/shop")
    (tmp_path / "orders.toml").write_text(read_fenced_block("toml", 1))
    assert run_command_for_exit_code(monkeypatch, "check", str(tmp_path / "orders.toml"), "--connect") == 1
    errors = capsys.readouterr().err
    assert 'source "orders": Kafka at 127.0.0.1:1 cannot be reached' in errors
    assert "state store: Postgres at 127.0.0.1:1/shop cannot be reached" in errors
    assert "target public.orders_per_minute: Postgres at 127.0.0.1:1/shop cannot be reached" in errors
    assert "dead_letter public.orders_rejected: Postgres" in errors
    assert "hunter2" not in errors
    assert len(errors.strip().splitlines()) == 4


@pytest.mark.usefixtures("spark")
def test_clicks_per_minute_example_counts_clicks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    rows = [{"page": "/", "ts": f"2024-03-01T09:00:{n * 9:02}Z"} for n in range(6)]
    (tmp_path / "in" / "0.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    monkeypatch.setattr(sys, "argv", ["x", f"{tmp_path}/in/*.jsonl", f"{tmp_path}/out", f"{tmp_path}/state"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runpy.run_path(str(ROOT / "examples" / "clicks_per_minute.py"), run_name="__main__")
    (row,) = read_output_rows(tmp_path / "out")
    assert (row["page"], row["clicks"]) == ("/", 6)


@pytest.mark.usefixtures("spark")
def test_late_data_page_matches_the_printed_dead_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the config of the page over the files of the page and compare the printed output."""
    page = "docs/late-data.md"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clicks.toml").write_text(read_fenced_block("toml", 0, page))
    (tmp_path / "in").mkdir()
    for n, lines in enumerate(read_fenced_block("json", 0, page).split("\n\n")):
        path = tmp_path / "in" / f"{n}.jsonl"
        path.write_text(lines.rstrip("\n") + "\n")
        os.utime(path, (1_600_000_000 + n, 1_600_000_000 + n))
    printed = []
    for line in read_fenced_block("", 0, page).splitlines():
        assert run_command_for_exit_code(monkeypatch, *line.split()[1:]) == 0
        printed.append(capsys.readouterr().out)
    assert "2 dead letters (1 late, 1 undecodable)" in printed[0]
    assert printed[1] == read_fenced_block("text", 0, page)
    assert printed[2] == read_fenced_block("text", 1, page).replace("/data/", f"{tmp_path}/")
    assert run_command_for_exit_code(monkeypatch, "dlq", "show", "clicks.toml", "--reason", "undecodable") == 0
    assert capsys.readouterr().out == read_fenced_block("text", 2, page).replace("/data/", f"{tmp_path}/")


@pytest.mark.usefixtures("spark")
def test_corrections_page_matches_the_emitted_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the config of the page over the files of the page and compare the emitted rows."""
    page = "docs/corrections.md"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "visits.toml").write_text(read_fenced_block("toml", 0, page))
    (tmp_path / "in").mkdir()
    for n, lines in enumerate(read_fenced_block("json", 0, page).split("\n\n")):
        path = tmp_path / "in" / f"{n}.jsonl"
        path.write_text(lines.rstrip("\n") + "\n")
        os.utime(path, (1_600_000_000 + n, 1_600_000_000 + n))
    assert run_command_for_exit_code(monkeypatch, *read_fenced_block("", 0, page).split()[1:]) == 0
    names, *expected = [line.split() for line in read_fenced_block("text", 0, page).splitlines()]
    rows = []
    for row in read_output_rows(tmp_path / "out"):
        values = [row[name] for name in names[1:]]
        rows.append(["-" if v is None else f"{v:%H:%M}" if hasattr(v, "hour") else str(v) for v in values])
    assert rows == [line[1:] for line in expected]
    epochs = [len(pl.read_parquet(path)) for path in sorted((tmp_path / "out").glob("*.parquet"))]
    assert epochs == [[line[0] for line in expected].count(epoch) for epoch in ("0", "1", "2")]


def test_configuration_page_names_every_config_key() -> None:
    from slackwater.config.pipeline import Pipeline
    from slackwater.config.source import Lookup, Source
    from slackwater.config.stage import Transform
    from slackwater.config.target import StateStore, Target
    from slackwater.config.window import Aggregation, Window

    page = (ROOT / "docs" / "configuration.md").read_text()
    for spec in (Pipeline, Transform, Source, Lookup, Target, StateStore, Window, Aggregation):
        for key in set(spec.KEYS) - {"dataframe"}:
            names = rf"\b{key}\b|\b{key.removesuffix('_ms')}\b"
            assert re.search(names, page), f"{spec.__name__}.{key} is not on the page"
