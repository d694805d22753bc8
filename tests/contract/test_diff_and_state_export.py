"""`diff` and `state export`: equal rows are equal on every system, and differences are reported by key and window."""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.support.local_pipeline_script import MicroBatch, run_local_script

import slackwater as sw
from slackwater.cli.main import main
from slackwater.connectors.delta.target import DeltaTarget
from slackwater.connectors.files.target import FilesTarget
from slackwater.connectors.postgres.target import PostgresTarget
from slackwater.connectors.target import LabeledRows, TargetTable
from slackwater.core.schema import Field
from slackwater.errors import StartError
from slackwater.query.results import compare_outputs, read_rows_at_location
from slackwater.state.files.store import FilesStore
from slackwater.state.postgres.store import PostgresStore

FIELDS = (
    Field("user", "string"),
    Field("window_start", "timestamp"),
    Field("n", "bigint"),
    Field("small", "int"),
    Field("total", "double"),
    Field("price", "decimal(12,2)"),
    Field("day", "date"),
    Field("flag", "boolean"),
    Field("raw", "binary"),
    Field("pages", "array<string>"),
    Field("top", "array<struct<value:string,count:bigint>>"),
)
START = dt.datetime(2024, 3, 1, 9, tzinfo=dt.UTC)


def all_type_rows() -> pl.DataFrame:
    def row(n: int) -> dict[str, Any]:
        return {
            "user": [None, "a", "ü,\"b"][n % 3],
            "window_start": START + dt.timedelta(minutes=n, microseconds=n),
            "n": n * 2**33,
            "small": None if n == 4 else n,
            "total": [0.5, -0.0, float("nan")][n % 3],
            "price": Decimal(n) / 4,
            "day": dt.date(1969, 7, 20),
            "flag": [True, False, None][n % 3],
            "raw": b"\x00\xff",
            "pages": ["x", None] if n else [],
            "top": [{"value": "x", "count": n}],
        }  # fmt: skip

    return pl.DataFrame([row(n) for n in range(7)], schema={f.name: f.polars for f in FIELDS})


Place = Callable[[str, pl.DataFrame], str]


@pytest.fixture
def write_to_target(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    """Return a function that writes rows as a target does and returns their location."""

    def write(kind: str, frame: pl.DataFrame) -> str:
        path = tmp_path / f"{kind}-{len(list(tmp_path.iterdir()))}"
        table = TargetTable("p", FIELDS, ("user", "window_start"), "s")
        where = str(path)
        if kind == "delta":
            target: Any = DeltaTarget(where, "merge", table)
        elif kind == "postgres":
            url = request.getfixturevalue("postgres").database(f"diff_{uuid.uuid4().hex[:12]}")
            target, where = PostgresTarget(url, "out.sessions", table), f"{url}#out.sessions"
        else:
            target = FilesTarget(path, kind, table)
        target.open()
        target.publish(0, frame.head(3))
        target.publish(1, frame.tail(-3))
        target.close()
        return where

    return write


def run_slackwater_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[int, str]:
    """Run the command. Return its exit code and its output."""
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["slackwater", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out + said.err


KINDS = ["parquet", "json", "csv", "delta", "postgres"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_equal_rows_in_any_two_systems_compare_as_equal(write_to_target: Place, kind: str, other: str) -> None:
    """NULL equals NULL, and NaN equals NaN. Times and bytes are parsed from text where a system has only text."""
    input_rows = (
        all_type_rows() if "json" not in (kind, other) else all_type_rows().with_columns(pl.col("total").fill_nan(7))
    )  # JSON has no NaN
    comparison = compare_outputs(
        read_rows_at_location(write_to_target(kind, input_rows)),
        read_rows_at_location(write_to_target(other, input_rows)),
        ["user", "window_start"],
    )
    assert (comparison.same, comparison.equal, comparison.repeated) == (True, 7, (0, 0))


@pytest.mark.parametrize("kind", KINDS)
def test_diff_counts_differing_and_unmatched_rows(write_to_target: Place, kind: str) -> None:
    changed = all_type_rows().with_columns(
        n=pl.when(pl.col("small") == 1).then(0).otherwise(pl.col("n")),
        small=pl.when(pl.col("n") == 0).then(None).when(pl.col("small") == 1).then(9).otherwise(pl.col("small")),
    )
    finite = pl.col("total").fill_nan(7)  # JSON has no NaN
    one, other = all_type_rows().head(6).with_columns(finite), changed.tail(-1).with_columns(finite)
    comparison = compare_outputs(
        read_rows_at_location(write_to_target("parquet", one)),
        read_rows_at_location(write_to_target(kind, other)),
        ["user", "window_start"],
    )
    assert (comparison.rows, comparison.equal, comparison.only, comparison.different) == ((6, 6), 4, (1, 1), 1)
    assert comparison.columns == {"n": 1, "small": 1}
    assert comparison.only_examples[0]["user"].to_list() == [None]
    (example,) = comparison.different_examples.to_dicts()
    assert (example["user"], example["small"], example["small__b"], example["total__differs"]) == ("a", 1, 9, False)


def session_rows(*more: dict[str, Any], **changed: Any) -> pl.DataFrame:
    plain = [
        {"user": u, "window_start": START, "n": n, "total": t}
        for u, n, t in (("a", 1, 1.0), ("b", 2, 2.0), (None, 3, 3.0))
    ]
    return pl.DataFrame([*plain, *more]).with_columns(**changed)


def test_diff_command_prints_a_text_or_json_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")
    session_rows().write_parquet(a)
    session_rows({"user": "c", "window_start": START, "n": 4, "total": 4.0}, total=pl.col("total") + 1e-9).filter(
        pl.col("user").ne_missing("b")
    ).write_parquet(b)
    by = ["--by", "user,window_start"]
    code, said = run_slackwater_command(capsys, monkeypatch, "diff", a, a, *by)
    assert (code, said.splitlines()[2:5]) == (0, ["by user, window_start", "", "equal      3"])
    code, said = run_slackwater_command(capsys, monkeypatch, "diff", a, b, *by)
    assert code == 1
    assert said.splitlines() == [
        f"A  {a}, 3 rows",
        f"B  {b}, 3 rows",
        "by user, window_start",
        "",
        "equal      0",
        "only in A  1",
        "only in B  1",
        "different  2  total 2",
        "",
        "only in A",
        "  user=b window_start=2024-03-01T09:00:00Z  n=2 total=2.0",
        "",
        "only in B",
        "  user=c window_start=2024-03-01T09:00:00Z  n=4 total=4.000000001",
        "",
        "different (A | B)",
        "  user=NULL window_start=2024-03-01T09:00:00Z  total: 3.0 | 3.000000001",
        "  user=a window_start=2024-03-01T09:00:00Z  total: 1.0 | 1.000000001",
    ]
    code, said = run_slackwater_command(
        capsys, monkeypatch, "diff", a, b, *by, "--tolerance", "1e-8", "--json", "-n", "1"
    )
    report = json.loads(said)
    assert (code, report["same"], report["equal"], report["only_in_a"], report["only_in_b"], report["different"]) == (
        1,
        False,
        2,
        1,
        1,
        0,
    )
    assert report["examples"]["only_in_a"] == [
        {"user": "b", "window_start": "2024-03-01T09:00:00Z", "n": 2, "total": 2.0}
    ]
    code, said = run_slackwater_command(capsys, monkeypatch, "diff", a, b, *by, "--json", "-n", "1")
    assert json.loads(said)["examples"]["different"] == [
        {"user": None, "window_start": "2024-03-01T09:00:00Z", "a": {"total": 3.0}, "b": {"total": 3.000000001}}
    ]


def test_columns_on_only_one_side_are_reported_unless_ignored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")
    session_rows().write_parquet(a)
    session_rows().rename({"total": "sum"}).write_parquet(b)
    code, said = run_slackwater_command(capsys, monkeypatch, "diff", a, b, "--by", "user")
    assert (code, said.splitlines()[-2:]) == (1, ["columns only in A: total", "columns only in B: sum"])
    assert run_slackwater_command(capsys, monkeypatch, "diff", a, b, "--by", "user", "--ignore", "total,sum")[0] == 0


def test_rows_with_a_repeated_identity_are_paired() -> None:
    twice = session_rows({"user": "a", "window_start": START, "n": 9, "total": 0.0})
    comparison = compare_outputs(LabeledRows("a", twice), LabeledRows("b", twice.reverse()), ["user"])
    assert (comparison.same, comparison.equal, comparison.repeated) == (True, 4, (1, 1))
    comparison = compare_outputs(LabeledRows("a", twice), LabeledRows("b", session_rows()), ["user"])
    assert (comparison.equal, comparison.only, comparison.repeated) == (3, (1, 0), (1, 0))


def test_only_the_newest_revision_of_a_window_is_compared() -> None:
    """An append-only target stores every revision of a window, including windows that were superseded."""
    revisions = [
        ("a", 1, "close", 1),
        ("a", 2, "late", 2),
        ("b", 1, "close", 5),
        ("b", 2, "supersede", None),
        ("a", 1, "standalone", 1),
    ]
    every = pl.DataFrame(revisions, schema=["user", "_revision", "_emit_reason", "n"], orient="row")
    newest = pl.DataFrame([("a", 2), ("a", 1)], schema=["user", "n"], orient="row")
    comparison = compare_outputs(
        LabeledRows("a", every), LabeledRows("b", newest), ["user"], ignore=["_revision", "_emit_reason"]
    )
    assert (comparison.same, comparison.equal) == (True, 2)


WINDOW = sw.Window(
    kind="session", gap_ms="30s", max_session_duration_ms="10m", group_by=["user"],
    aggregations=[sw.Aggregation(agg="count", as_="n"), sw.Aggregation(agg="collect_set", column="page", as_="pages", max_values_per_group=9)],
)  # fmt: skip
SCHEMA = {"user": "string", "page": "string"}


def page_events(*seconds: int, user: str | None = "a") -> MicroBatch:
    return MicroBatch({"a": [{"ts": 1_000_000 * s, "user": user, "page": f"/{s}"} for s in seconds]})


@pytest.fixture(params=["files", "postgres"])
def run_session_script(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., str]:
    """Run a script without a flush. Return the location of the state."""

    def run(name: str, *script: Any) -> str:
        if request.param == "files":
            run_local_script(WINDOW, script, SCHEMA, flush=False, store=lambda: FilesStore(tmp_path / name, "law"))
            return str(tmp_path / name)
        url: str = request.getfixturevalue("postgres").database(f"diff_{name}_{abs(hash(tmp_path)):x}")
        run_local_script(WINDOW, script, SCHEMA, flush=False, store=lambda: PostgresStore(url, "public", "law"))
        return url

    return run


def test_states_and_their_exports_are_compared_window_by_window(
    run_session_script: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    a = run_session_script("one", page_events(0, 10, 20), page_events(15, user=None))
    b = run_session_script("two", page_events(0, 10), page_events(15, 16, user=None), page_events(20))
    code, said = run_slackwater_command(
        capsys, monkeypatch, "diff", f"state:{a}", f"state:{b}#law", "--ignore", "pages"
    )
    assert code == 1
    assert said.splitlines()[0].startswith("A  state of law in epoch 1, 2 rows")
    assert "by user, window_start" in said
    assert "equal      1" in said
    assert (
        "user=NULL window_start=1970-01-01T00:00:15Z  window_end: 1970-01-01T00:00:45Z | 1970-01-01T00:00:46Z  n: 1 | 2"
        in said
    )
    for suffix in ("parquet", "csv", "jsonl"):
        out = str(tmp_path / f"x.{suffix}")
        code, said = run_slackwater_command(capsys, monkeypatch, "state", "export", a, out)
        assert (code, said) == (0, f"2 windows of law as of epoch 1, in {out}\n")
        ignored = "_status,_closes_at,_last_event,_epoch"
        code, said = run_slackwater_command(capsys, monkeypatch, "diff", f"state:{a}", out, "--ignore", ignored)
        assert code == 0, said


def test_export_can_filter_rows_and_read_an_earlier_epoch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_local_script(
        WINDOW,
        [page_events(0), page_events(5, 6, user="b"), page_events(7)],
        SCHEMA,
        flush=False,
        state_dir=str(tmp_path / "state"),
    )
    out = tmp_path / "out.parquet"
    state = str(tmp_path / "state")
    code, said = run_slackwater_command(
        capsys, monkeypatch, "state", "export", state, str(out), "--where", "n > 1 AND \"user\" = 'b'"
    )
    assert (code, said) == (0, f"1 window of law as of epoch 2, in {out}\n")
    assert pl.read_parquet(out).select("user", "n", "_status").rows() == [("b", 2, "open")]
    code, said = run_slackwater_command(capsys, monkeypatch, "state", "export", state, str(out), "--at", "0")
    assert (code, said) == (0, f"1 window of law as of epoch 0, in {out}\n")
    assert pl.read_parquet(out).select("user", "n", "_epoch").rows() == [("a", 1, 0)]
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("x.xls", 'found the suffix ".xls", expected .parquet'),
        ("no/x.csv", "the directory .*no does not exist; create it"),
    ],
)
def test_export_to_an_unwritable_path_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, out: str, message: str
) -> None:
    run_local_script(WINDOW, [page_events(0)], SCHEMA, flush=False, state_dir=str(tmp_path / "state"))
    code, said = run_slackwater_command(
        capsys, monkeypatch, "state", "export", str(tmp_path / "state"), str(tmp_path / out)
    )
    assert (code, re.search(message, said) is not None) == (1, True), said


CONFIG = """
name = "clicks"

[connections.lake]
kind = "files"

[connections.log]
kind = "console"

[[sources]]
connection = "lake"
query = "in/*.json"
format = "json"

[transform.window]
kind = "tumbling"
duration_ms = "1m"
group_by = ["user"]
max_groups_per_window = 10
event_time_column = "ts"

[[transform.window.aggregations]]
agg = "count"
as = "n"

[target]
"""


def test_diff_reads_the_target_of_a_config(
    write_to_target: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = write_to_target("parquet", all_type_rows())
    file = tmp_path / "clicks.toml"
    file.write_text(f'{CONFIG}connection = "lake"\npath = "{where}"\n')
    code, said = run_slackwater_command(capsys, monkeypatch, "diff", str(file), write_to_target("csv", all_type_rows()))
    assert (code, said.splitlines()[0]) == (0, f"A  clicks: {where}, 7 rows")
    delta = write_to_target("delta", all_type_rows())
    file.write_text(f'{CONFIG}connection = "d"\npath = "{delta}"\n[connections.d]\nkind = "delta"\n')
    assert run_slackwater_command(capsys, monkeypatch, "diff", str(file), where)[0] == 0
    url, _, table = write_to_target("postgres", all_type_rows()).partition("#")
    file.write_text(
        f'{CONFIG}connection = "db"\ntable = "{table}"\n[connections.db]\nkind = "postgres"\nurl = "{url}"\n'
    )
    code, said = run_slackwater_command(capsys, monkeypatch, "diff", str(file), delta)
    assert code == 0
    assert url not in said  # the URL may contain a password
    file.write_text(f'{CONFIG}connection = "log"\n')
    code, said = run_slackwater_command(capsys, monkeypatch, "diff", str(file), delta)
    assert (code, "its target is the console, which does not store rows" in said) == (2, True)


def test_inputs_that_cannot_be_compared_are_refused_with_a_one_line_error(
    write_to_target: Place,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    postgres: Any,
) -> None:
    readable, url = write_to_target("parquet", all_type_rows()), postgres.database("diff_none")
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.parquet").write_text("no")
    (tmp_path / "lake" / "_delta_log").mkdir(parents=True)
    two = tmp_path / "two"
    two.mkdir()
    (two / "a.csv").write_text("a\n1\n")
    (two / "b.json").write_text("")
    for where, by, message in (
        (readable, [], "files and tables do not define which columns identify a row; name the columns, as in --by"),
        (readable, ["--by", "usr"], 'there is no column "usr"; available: user, window_start'),
        (str(tmp_path / "none"), [], "there is no such file or directory; expected files"),
        (str(tmp_path / "empty"), [], "found no file with a known suffix, expected files of one kind: .parquet"),
        (str(two), [], "found csv and json, expected files of one kind"),
        (str(tmp_path / "bad.parquet"), [], "bad.parquet: cannot be read as parquet"),
        (str(tmp_path / "lake"), [], "lake: cannot be read as a Delta table"),
        (url, [], "the URL does not name a table; append it, as in postgresql://"),
        (f"{url}#nothing", [], "there is no such table"),
        (f"state:{tmp_path}/none", [], "is not a state directory"),
    ):
        code, said = run_slackwater_command(capsys, monkeypatch, "diff", where, readable, *by)
        assert (code, len(said.splitlines())) == (2, 1), said
        assert message in said


def test_conflicting_identity_columns_are_refused() -> None:
    one, other = LabeledRows("A", session_rows(), ("user",)), LabeledRows("B", session_rows(), ("user", "window_start"))
    with pytest.raises(
        StartError,
        match="A identifies rows by user, but B identifies rows by user, window_start; name the columns with --by",
    ):
        compare_outputs(one, other)
    assert compare_outputs(one, LabeledRows("B", session_rows())).by == ("user",)
