"""Queries on a state in files, object storage and Postgres: results, errors and reads of one commit."""

from __future__ import annotations

import datetime as dt
import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

import polars as pl
import pyarrow as pa
import pytest
from tests.laws.generators import state_view_runs
from tests.support.case_selection import exhaustive, select_cases
from tests.support.local_pipeline_script import MicroBatch, run_local_script

import slackwater as sw
from slackwater.cli.main import main
from slackwater.errors import StartError, StateError
from slackwater.query.server import ARROW, serve_state
from slackwater.query.state_locator import list_pipelines
from slackwater.query.state_view import StateView, to_arrow
from slackwater.state.files.store import KEPT_EPOCHS, FilesStore
from slackwater.state.postgres.store import PostgresStore

S = 1_000_000
SCHEMA = {"user": "string", "v": "bigint"}
SESSION = sw.Window(
    kind="session",
    gap_ms=500,
    max_session_duration_ms="1d",
    lateness_ms="1h",
    group_by=["user"],
    aggregations=[sw.Aggregation(agg="count", as_="n"), sw.Aggregation(agg="sum", column="v", as_="total")],
)


class StateLocation:
    """The location of a state, with a new store for each use."""

    def __init__(self, where: str, make: Callable[[str], Any]) -> None:
        self.where, self._make, self._create = where, make, list[Any]()

    def create_store(self, name: str = "law") -> Any:
        self._create.append(self._make(name))
        return self._create[-1]

    def run_script(self, script: Any, window: sw.Window = SESSION, name: str = "law", **options: Any) -> None:
        run_local_script(window, script, SCHEMA, flush=False, store=lambda: self.create_store(name), **options)

    def close_stores(self) -> None:
        for store in self._create:
            store.close()


@pytest.fixture(params=select_cases(["files", "postgres", "objects"], keep=2))
def state_location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateLocation]:
    if request.param == "files":
        new_place = StateLocation(str(tmp_path / "state"), lambda name: FilesStore(tmp_path / "state", name))
    elif request.param == "objects":
        bucket = request.getfixturevalue("bucket")
        new_place = StateLocation(bucket, lambda name: FilesStore(bucket, name))
    else:
        url = request.getfixturevalue("postgres").database(f"asked_{abs(hash(request.node.name)):x}")
        new_place = StateLocation(url, lambda name: PostgresStore(url, "public", name))
    yield new_place
    new_place.close_stores()


def event_row(ts: int, user: str | None = "k", v: int = 1) -> dict[str, Any]:
    return {"ts": ts, "user": user, "v": v}


def kip94_session_events(step: int = S // 2) -> list[Any]:
    """Return the sessions of KIP-94, in seconds: 0-99, 101-200, 201-300, 301-400 of one key."""
    spans = ((0, 99), (101, 200), (201, 300), (301, 400))
    return [MicroBatch({"a": [event_row(ts) for ts in range(a * S, b * S + 1, step)]}) for a, b in spans]


def test_find_sessions_returns_the_sessions_of_the_kip_94_example(state_location: StateLocation) -> None:
    state_location.run_script(kip94_session_events())
    with sw.open_state(state_location.where) as view:
        sessions = view.find_sessions("k", 150 * S, 300 * S)
        assert sessions["window_start"].dt.timestamp("us").to_list() == [101 * S, 201 * S]
        assert sessions["_last_event"].dt.timestamp("us").to_list() == [200 * S, 300 * S]
        assert sessions["n"].to_list() == [199, 199]
        late = dt.datetime(1970, 1, 1, 0, 5, 1)
        assert view.find_sessions({"user": "k"}, latest_start=late).height == 4
        assert view.find_sessions("k", "1970-01-01T00:05:01Z").height == 1
        assert view.find_sessions("k", 401 * S).is_empty()
        assert view.fetch("k").height == 4


@pytest.mark.parametrize("seed", [3, 10, 12])
def test_state_view_equals_the_results_that_the_store_would_emit(state_location: StateLocation, seed: int) -> None:
    state_view_runs.compare_view_with_emitted_rows(seed, seed % 5 == 0, state_location.create_store)


def test_scan_and_fetch_return_key_result_and_status_columns(state_location: StateLocation) -> None:
    state_location.run_script([MicroBatch({"a": [event_row(0, "a", 5), event_row(S, None, 7)]})])
    with sw.open_state(state_location.where, "law") as view:
        frame = view.scan()
        assert list(view.columns) == frame.columns == [
            *("user", "window_start", "window_end", "session_id", "n", "total"),
            *("_status", "_closes_at", "_last_event", "_epoch"),
        ]  # fmt: skip
        assert frame["user"].to_list() == ["a", None]
        assert view.fetch(None)["total"].to_list() == [7]
        assert view.scan("total > 5")["total"].to_list() == [7]
        assert view.scan(pl.col("total") > 5, limit=0).is_empty()
        assert view.scan(limit=1)["user"].to_list() == ["a"]
        assert to_arrow(frame).schema.field("user").type == pa.large_string()
        assert view.fetch("nobody").schema == frame.schema


def test_windows_without_group_by_are_fetched_without_a_key(state_location: StateLocation) -> None:
    minutes = sw.Window(
        kind="tumbling", duration_ms="1m", max_groups_per_window=10, aggregations=[sw.Aggregation(agg="count", as_="n")]
    )
    state_location.run_script([MicroBatch({"a": [event_row(0), event_row(S), event_row(61 * S)]})], minutes)
    with sw.open_state(state_location.where) as view:
        assert view.fetch()["n"].to_list() == [1], "the first minute is closed"
        with pytest.raises(StartError, match="find_sessions: found tumbling windows, expected session windows"):
            view.find_sessions(None)
        with pytest.raises(StartError, match="key: found 'k', expected none, as there is no group_by"):
            view.fetch("k")


def test_query_reads_the_window_stage_after_a_join(state_location: StateLocation) -> None:
    join = sw.Join(
        kind="inner", left_source="a", right_source="b", left_keys=["user"], right_keys=["user"], time_window_ms=1000,
        output_left_columns=["user", "v"], output_right_columns=[],
    )  # fmt: skip
    window = sw.Window(
        kind="session", gap_ms="1m", max_session_duration_ms="1d", group_by=["left_user"],
        aggregations=[sw.Aggregation(agg="count", as_="n")],
    )  # fmt: skip
    earlier = MicroBatch({"a": [event_row(0), event_row(5 * S, "x")], "b": [event_row(0), event_row(0)]})
    later = MicroBatch({"a": [event_row(100 * S)], "b": [event_row(100 * S)]})
    state_location.run_script([earlier, later], join, sources=("a", "b"), downstream=window)
    with sw.open_state(state_location.where) as view:
        assert view.fetch("k")["n"].to_list() == [1], "the session of the first two pairs is closed"
        assert view.scan()["left_user"].unique().to_list() == ["k"]


def test_query_on_the_state_of_a_join_is_refused(state_location: StateLocation) -> None:
    join = sw.Join(
        kind="inner",
        left_source="a",
        right_source="b",
        left_keys=["user"],
        right_keys=["user"],
        time_window_ms=1000,
        left_prefix="l_",
        right_prefix="r_",
    )
    state_location.run_script([MicroBatch({"a": [event_row(0)], "b": []})], join, sources=("a", "b"))
    with pytest.raises(StateError, match="the state in epoch 0 belongs to a join; only windows can be inspected"):
        sw.open_state(state_location.where).scan()


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda v: v.fetch(3), "key: user: found 3, expected a value of type string"),
        (lambda v: v.fetch({"usr": "k"}), "key: found the columns usr, expected user"),
        (lambda v: v.scan("nn > 1"), 'where: unable to find column "nn"'),
        (lambda v: v.scan("n >"), 'where: "n >" cannot be parsed .* expected a condition in SQL'),
        (lambda v: v.find_sessions("k", "noon"), 'earliest_end: found "noon", expected a time such as'),
    ],
)
def test_invalid_query_arguments_are_reported(
    state_location: StateLocation, ask: Callable[[StateView], Any], message: str
) -> None:
    state_location.run_script([MicroBatch({"a": [event_row(0)]})])
    with sw.open_state(state_location.where) as view, pytest.raises(StartError, match=message):
        ask(view)


def test_ambiguous_or_unknown_pipeline_name_is_reported_with_candidates(state_location: StateLocation) -> None:
    state_location.create_store().open()
    state_location.close_stores()
    state_location.run_script([MicroBatch({"a": [event_row(0)]})])
    other = state_location.create_store("other")
    other.open()
    if isinstance(other, PostgresStore):
        with pytest.raises(StartError, match='pipeline "othr" has no state here; available: law'):
            sw.open_state(state_location.where, "othr")
        return
    with pytest.raises(StartError, match="found the states of several pipelines: law, other; name one of them"):
        sw.open_state(state_location.where)
    with pytest.raises(StartError, match='pipeline "othr" has no state here; did you mean "other"'):
        sw.open_state(state_location.where, "othr")
    with pytest.raises(StateError, match="there is no state yet; start the pipeline to create it"):
        sw.open_state(state_location.where, "other").scan()
    assert sw.open_state(f"{state_location.where}/law").scan().height == 1
    with pytest.raises(StartError, match='this is the state of "law", not of "other"'):
        sw.open_state(f"{state_location.where}/law", "other")
    assert list_pipelines(state_location.where) == ["law", "other"]
    nowhere = "no pipeline has a state here" if "://" in state_location.where else "is not a state directory"
    with pytest.raises(StartError, match=nowhere):
        sw.open_state(f"{state_location.where}/nowhere/at/all")


def test_missing_state_and_in_memory_state_are_reported(tmp_path: Path, postgres: Any) -> None:
    with pytest.raises(StartError, match="no pipeline has a state here"):
        sw.open_state(tmp_path)
    with pytest.raises(StartError, match=r'schema "public" of .*: no pipeline has a state here'):
        sw.open_state(postgres.database("asked_nothing"))
    window = sw.Window(
        kind="tumbling", duration_ms=1, max_groups_per_window=1, aggregations=[sw.Aggregation(agg="count", as_="n")]
    )
    in_memory = sw.pipeline(
        name="p",
        source=sw.Source(connection=sw.FilesConnection(), query="x.json", format="json", schema="ts TIMESTAMP"),
        window=window.model_copy(update={"event_time_column": "ts"}),
        target=sw.ConsoleConnection(),
    )
    with pytest.raises(StartError, match="p: its state is in memory, which only the runner can read"):
        sw.open_state(in_memory)


def test_as_of_query_reads_retained_epochs_and_rejects_others(state_location: StateLocation) -> None:
    state_location.run_script([MicroBatch({"a": [event_row(n * S // 10)]}) for n in range(KEPT_EPOCHS + 3)])
    with sw.open_state(state_location.where) as view:
        epochs = view.epochs()
        newest = KEPT_EPOCHS + 2
        assert view.fetch("k")["n"].to_list() == [newest + 1]
        for epoch in epochs:
            assert view.as_of(epoch).fetch("k").select("n", "_epoch").rows() == [(epoch + 1, epoch)]
        with pytest.raises(StateError, match="epoch 99 is not kept; available"):
            view.as_of(99)
        assert epochs == (
            [newest] if state_location.where.startswith("postgres") else list(range(epochs[0], newest + 1))
        )
        with (
            pytest.raises(StateError, match=r"epoch 99 is not kept in .*; available: epoch"),
            state_location.create_store().peek(99),
        ):
            pass


def test_corrupt_segment_is_reported_instead_of_read(tmp_path: Path) -> None:
    place = StateLocation(str(tmp_path / "state"), lambda name: FilesStore(tmp_path / "state", name))
    place.run_script([MicroBatch({"a": [event_row(0)]})])
    (segment,) = (tmp_path / "state" / "law" / "segments").iterdir()
    content = bytearray(segment.read_bytes())
    content[400] ^= 1
    segment.write_bytes(content)
    with pytest.raises(
        StateError, match=rf"{segment.name} (does not match its checksum|cannot be read).*; restore it from a copy"
    ):
        sw.open_state(place.where).fetch("k")


@pytest.mark.parametrize("state_location", ["files", "postgres"], indirect=True)
@exhaustive(beside="test_concurrent_state_reads.py::test_continuous_reads_do_not_block_starts_and_see_whole_commits")
def test_reads_next_to_a_running_pipeline_see_whole_commits(state_location: StateLocation) -> None:
    """Each epoch adds one row to each of 40 keys. In every read, all keys have the row count of the same epoch."""
    users = [f"u{n}" for n in range(40)]
    batches = [MicroBatch({"a": [event_row(batch * S // 10, user) for user in users]}) for batch in range(60)]
    state_location.run_script(batches[:2])
    failed: list[BaseException] = []

    def run() -> None:
        try:
            for n in range(2, 60, 20):  # each call is a restart
                state_location.run_script(batches[n : n + 20])
        except BaseException as error:
            failed.append(error)

    runner = threading.Thread(target=run)
    runner.start()
    epochs, reads = set(), 0
    with sw.open_state(state_location.where) as view:
        while reads < 300 or runner.is_alive():
            if reads % 4:
                frame = view.fetch(users[reads % 40])
                assert frame.height == 1
            else:
                frame = view.scan()
                assert frame.height == 40
            (epoch,) = frame["_epoch"].unique().to_list()
            assert frame["n"].unique().to_list() == frame["total"].unique().to_list() == [epoch + 1]
            epochs.add(epoch)
            reads += 1
    runner.join()
    assert not failed, failed
    assert len(epochs) > 10
    assert max(epochs) == 59


# -- the command line and HTTP -----------------------------------------------------------------------------------------


def run_slackwater_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> list[str]:
    monkeypatch.setattr("sys.argv", ["slackwater", *arguments])
    try:
        main()
    except SystemExit as end:
        if end.code:
            return [f"{end.code} {line}" for line in capsys.readouterr().err.splitlines()]
    return capsys.readouterr().out.splitlines()


def test_state_commands_list_show_and_query_windows(
    state_location: StateLocation, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state_location.run_script(kip94_session_events(10 * S))

    def say(*arguments: str) -> list[str]:
        return run_slackwater_command(capsys, monkeypatch, "state", *arguments)

    head, line = say("ls", state_location.where)
    assert head.split()[:4] == ["pipeline", "epoch", "committed", "watermark"]
    assert line.split()[:2] == ["law", "3"]
    (listed,) = map(json.loads, say("ls", state_location.where, "--json"))
    assert (listed["pipeline"], listed["epoch"], listed["runner"]) == ("law", 3, None)
    shown = say("show", state_location.where)
    assert shown[0] == "pipeline     law"
    assert any(line.startswith("step ") and "kind session" in line for line in shown)
    assert json.loads(say("show", state_location.where, "--json")[0])["epoch"] == 3
    head, *lines = say("get", state_location.where, "user=k")
    assert head.split()[0] == "user"
    assert len(lines) > 4
    lines = say("find-sessions", state_location.where, "user=k", "--earliest-end", "1970-01-01T00:06:40", "--json")
    assert lines == [], "the last event is at 391 s"
    (line,) = say("find-sessions", state_location.where, "user=k", "--earliest-end", "1970-01-01T00:06:31", "--json")
    assert json.loads(line)["_last_event"] == "1970-01-01T00:06:31Z"
    assert say("get", state_location.where, "user=nobody") == ["no open or retained window"]
    assert say("get", state_location.where, "usr=k") == [
        '1 error: law: key: "usr" is not a key of this window; did you mean "user"?'
    ]
    assert say("get", state_location.where, "user=k", "--at", "77")[0].startswith(
        "1 error: epoch 77 is not kept; available"
    )


def test_http_fetch_accepts_a_key_of_two_columns(state_location: StateLocation) -> None:
    state_location.run_script(
        [MicroBatch({"a": [event_row(0, "k,v=2", 1), event_row(0, "k", 2)]})],
        SESSION.model_copy(update={"group_by": ("user", "v")}),
    )
    with sw.open_state(state_location.where) as view:
        server = serve_state(view, 0)
        try:
            for key in ("key=user=k&key=v=2", "key=v=2&key=user=k", "key=user=k,v=2"):
                with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/fetch?{key}") as answer:
                    assert [(r["user"], r["v"]) for r in json.loads(answer.read())] == [("k", 2)], key
        finally:
            server.stop()


def test_http_server_answers_queries_and_reports_errors(state_location: StateLocation) -> None:
    state_location.run_script([MicroBatch({"a": [event_row(0, "a=b"), event_row(S, None), event_row(9 * S, "c", 3)]})])
    with sw.open_state(state_location.where) as view:
        server = serve_state(view, 0)
        try:

            def get(path: str, **headers: str) -> bytes:
                url = f"http://127.0.0.1:{server.port}{path}"
                with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
                    body: bytes = answer.read()
                    return body

            about = json.loads(get("/"))
            assert (about["pipeline"], about["epoch"], about["paths"]) == (
                "law",
                0,
                ["/", "/fetch", "/find-sessions", "/scan"],
            )
            assert about["watermark_us"] == 9 * S - 3600 * S
            (one,) = json.loads(get(f"/fetch?key={quote('user=a=b')}"))
            assert (one["user"], one["window_start"], one["n"]) == ("a=b", "1970-01-01T00:00:00Z", 1)
            assert len(json.loads(get("/fetch?key=user"))) == 1, "a name alone is NULL"
            assert [r["user"] for r in json.loads(get(f"/scan?where={quote('total > 1')}"))] == ["c"]
            assert len(json.loads(get("/scan?limit=2&at=0"))) == 2
            assert json.loads(get("/find-sessions?key=user=c&earliest_end=1970-01-01T00:00:10Z")) == []
            for answer in (get("/scan?format=arrow"), get("/scan", Accept=ARROW)):
                assert pa.ipc.open_stream(answer).read_all().num_rows == 3
            for path, status, message in (
                ("/nowhere", 404, "there is no /nowhere; available: /, /fetch"),
                ("/fetch?key=usr=c", 400, '"usr" is not a key of this window'),
                ("/fetch?kee=user=c", 400, '"kee" is not a known parameter; available: key, at, format'),
                ("/scan?limit=many", 400, 'limit: found "many", expected a whole number'),
                ("/scan?limit=-1", 400, 'limit: found "-1", expected a whole number from 0 to'),
                ("/scan?at=9", 503, "epoch 9 is not kept"),
            ):
                with pytest.raises(HTTPError) as refused:
                    get(path)
                assert refused.value.code == status
                assert message in json.loads(refused.value.read())["error"]
            with pytest.raises(HTTPError, match="405"):
                urllib.request.urlopen(f"http://127.0.0.1:{server.port}/scan", data=b"x")
            with pytest.raises(StartError, match=r"the state cannot be served on 127\.0\.0\.1:.*choose another --port"):
                serve_state(view, server.port)
        finally:
            server.stop()


@pytest.mark.parametrize("name", ["_status", "_Status", "_epoch", "_last_event", "_closes_at"])
def test_user_column_may_have_the_name_of_a_query_column(name: str, tmp_path: Path) -> None:
    """The query column gets another `_` prefix, and a run with such a column name is accepted."""
    window = SESSION.model_copy(update={"group_by": (name,)})
    rows = [{"ts": t * S, name: "a", "v": 1} for t in (0, 10)]
    run_local_script(
        window, [MicroBatch({"a": rows})], {name: "string", "v": "bigint"}, flush=False, state_dir=str(tmp_path)
    )
    with StateView(FilesStore(tmp_path, "law")) as view:
        frame = view.scan()
        assert frame[name].to_list() == ["a", "a"]
        assert f"_{name.casefold()}" in frame.columns
        assert frame.columns[-1].endswith("_epoch")
        assert view.fetch("a").equals(frame)
        assert view.find_sessions("a", 5 * S).height == 1
        assert view.scan(f"\"{name}\" = 'a'").height == 2
