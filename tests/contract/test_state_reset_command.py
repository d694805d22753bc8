"""`state reset` commits new offsets in every store, and validates them without a broker."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.case_selection import select_cases
from tests.support.session_store_commits import (
    build_session_commit,
    commit_sessions_of_users,
    open_session_store,
    read_session_users,
)

from slackwater.cli.main import main
from slackwater.connectors.kafka import broker as kafka_broker
from slackwater.state.commit import OutputMetadata
from slackwater.state.files.store import FilesStore
from slackwater.state.postgres.store import PostgresStore

CLICKS = {"clicks": {"0": 100, "1": 7}, "more": {"0": 5}}
Ask = Callable[..., str]


@pytest.fixture(params=select_cases(["files", "postgres", "objects"], keep=2))
def store_factory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    stores: list[Any] = []
    url = ""
    place: Any = request.getfixturevalue("bucket") if request.param == "objects" else tmp_path / "state"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres").database(f"reset_{abs(hash(request.node.name)):x}")

    def make_store() -> Any:
        stores.append(PostgresStore(url, "public", "p") if url else FilesStore(place, "p"))
        return stores[-1]

    yield make_store
    for store in stores:
        store.close()


@pytest.fixture
def run_reset(
    store_factory: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Ask:
    """Return a function that runs the command and returns the output or the error."""

    def run(*offsets: str, dry: bool = False, where: str | None = None) -> str:
        store = store_factory()
        place = where or (store.root if isinstance(store, FilesStore) else store._url)
        offset_arguments = [word for text in offsets for word in ("--offsets", text)]
        arguments = ["slackwater", "state", "reset", place, *offset_arguments, *(["--dry-run"] if dry else [])]
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return captured.err if ended.value.code else captured.out

    return run


def commit_two_epochs(make: Callable[[], Any], **more: Any) -> None:
    """Commit two epochs with one user in the state, a Kafka source and a source of files."""
    store = open_session_store(make)
    first = commit_sessions_of_users(store, None, "a")
    name = store.write_list(1, ["one"])
    sources = {
        "events": {"offsets": CLICKS, "rows": 112, "max_event_us": 5},
        "old": {"offsets": {"segments": [name], "count": 3}, "rows": 9},
    }
    defaults = {"segments": first.stages[0].segments, "windows": (1,), "watermark_us": 4, "sources": sources}
    store.commit(build_session_commit(1, **{**defaults, **more}))
    store.close()


def read_source_offsets(make: Callable[[], Any]) -> dict[str, Any]:
    with make().peek() as snapshot:
        return {n: s.offsets and s.offsets.to_json() for n, s in snapshot.commit.sources.items()}


def test_reset_sets_only_offsets_of_partitions_and_files(store_factory: Callable[[], Any], run_reset: Ask) -> None:
    commit_two_epochs(store_factory)
    before = store_factory().read_commit_record().record
    new_offsets = json.dumps({"events": {"clicks": {"0": 42, "1": 9}}, "old": "earliest"})
    lines = [
        "p: epoch 1; its windows and clocks do not change",
        "source  partition  continues at  will continue at",
        "events  clicks-0   100           42                58 again",
        "events  clicks-1   7             9                 2 skipped",
        "events  more-0     5             5                 unchanged",
        "old     files      3 files read  none read         3 files again",
        "warning: rows that are read again are late if their windows are closed. They count twice in windows that are still open or "
        "retained.",
        "warning: skipped rows are lost; no window will contain them",
    ]
    assert run_reset(new_offsets, dry=True).splitlines() == [*lines, "nothing was changed (--dry-run)"]
    assert store_factory().read_commit_record().record == before
    assert run_reset(new_offsets).splitlines() == [*lines, "committed as epoch 2"]
    after = store_factory().read_commit_record().record
    changed = {"epoch", "committed_us", "commit_id", "sources"}
    assert {k: v for k, v in after.items() if k not in changed} == {k: v for k, v in before.items() if k not in changed}
    assert read_source_offsets(store_factory) == {
        "events": {"clicks": {"0": 42, "1": 9}, "more": {"0": 5}},
        "old": {"segments": [], "count": 0},
    }
    assert after["stages"][0]["clocks"]["events"]["max_event_us"] == 5
    with store_factory().peek() as snapshot:
        assert read_session_users(snapshot) == ["a"]
    if isinstance(store_factory(), PostgresStore):
        with psycopg.connect(store_factory()._url) as db:
            cursor = db.execute('SELECT source, partition, "offset", epoch FROM slackwater_offsets ORDER BY 1, 2')
            assert cursor.fetchall() == [
                ("events", "clicks-0", "42", 2), ("events", "clicks-1", "9", 2), ("events", "more-0", "5", 2),
                ("old", "files", "0", 2),
            ]  # fmt: skip
    again = open_session_store(store_factory)
    commit_sessions_of_users(again, snapshot.commit, "b")
    again.close()
    with store_factory().peek() as snapshot:
        assert read_session_users(snapshot) == ["b"]


def test_reset_to_current_offsets_does_not_commit(store_factory: Callable[[], Any], run_reset: Ask) -> None:
    commit_two_epochs(store_factory)
    assert run_reset('{"events": {"clicks": {"0": 100}}}') == (
        "error: p: the sources already continue from these offsets; nothing was committed\n"
    )
    assert store_factory().read_commit_record().record["epoch"] == 1


FILE = """
name = "p"
[connections.bus]
kind = "kafka"
bootstrap_servers = "127.0.0.1:1"
[connections.lake]
kind = "files"
[[sources]]
name = "events"
connection = "{connection}"
query = "in"
{more}
schema = "user STRING, ts TIMESTAMP"
[transform.window]
kind = "tumbling"
duration_ms = "1m"
event_time_column = "ts"
group_by = ["user"]
max_groups_per_window = 1000
[[transform.window.aggregations]]
agg = "count"
as = "n"
[target]
connection = "lake"
path = "out"
[state_store]
kind = "files"
path = "{state}"
"""


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        (["{"], "--offsets: found {, which is not JSON (Expecting property name"),
        (["event=latest"], '--offsets: the state has no source "event"; did you mean "events"?'),
        (["old=earliest", "old=earliest"], '--offsets: source "old" is named twice'),
        (["old=latest"], '--offsets: source "old": this source reads files, which have no offsets to continue from; expected "earliest"'),
        (['{"old": {"t": {"0": 1}}}'], '--offsets: source "old": this source reads files'),
        (["events=soon"], '--offsets: source "events": found "soon", expected "earliest", "latest", a time such as 2026-'),
        (['{"events": 7}'], '--offsets: source "events": found 7, expected "earliest"'),
        (['{"events": {"clicks": 7}}'], 'topic "clicks": found 7, expected partitions, as in {"0": 42}'),
        (['{"events": {"clicks": {}}}'], 'topic "clicks": found {}, expected partitions'),
        (['{"events": {"clicks": {"one": 7}}}'], 'topic "clicks": found the partition "one", expected a number such as "0"'),
        (['{"events": {"clicks": {"0": -1}}}'], "clicks-0: found -1, expected an offset (0 or a positive whole number)"),
        (['{"events": {"clicks": {"0": true}}}'], "clicks-0: found true, expected an offset"),
        (['{"events": {"clicks": {"0": "42"}}}'], 'clicks-0: found "42", expected an offset'),
        (['{"events": {"clicks": {"2": 1}}}'], 'topic "clicks" has no partition 2; available: 0, 1'),
        (['{"events": {"click": {"0": 1}}}'], 'this source does not read topic "click"; did you mean "clicks"?'),
        (["events=2026-03-01T12:00:00Z"], "this position must be looked up on a broker, which requires the config; pass the pipeline's TOML file as WHERE"),
    ],
)  # fmt: skip
def test_invalid_offsets_are_rejected_with_a_one_line_error_without_commit(
    store_factory: Callable[[], Any], run_reset: Ask, offsets: list[str], message: str
) -> None:
    commit_two_epochs(store_factory)
    output = run_reset(*offsets)
    assert message in output
    assert output.startswith("error: ")
    assert output.count("\n") == 1
    assert store_factory().read_commit_record().record["epoch"] == 1


def test_reset_is_refused_while_output_is_unpublished_or_runner_is_active(
    store_factory: Callable[[], Any], run_reset: Ask
) -> None:
    waits = OutputMetadata(file="outputs/000000001-x", rows=1)
    commit_two_epochs(store_factory, output=(waits,))
    assert "epoch 1 was committed, but its output is not published yet" in run_reset("old=earliest")
    runner = store_factory()
    runner.open()
    runner.mark_published(1)
    assert run_reset("old=earliest").startswith("error: pipeline is already running: process ")
    assert run_reset("old=earliest", dry=True).endswith("nothing was changed (--dry-run)\n")
    runner.close()
    assert run_reset("old=earliest").endswith("committed as epoch 2\n")


def test_reset_is_refused_for_source_that_resumes_from_spark_checkpoint(
    store_factory: Callable[[], Any], run_reset: Ask
) -> None:
    source_records = {"queue": {"rows": 4}, "events": {"offsets": CLICKS, "rows": 1}}
    commit_two_epochs(store_factory, sources=source_records)
    assert run_reset("events=latest").startswith(
        'error: p: no offsets can be reset, because source "queue" resumes only from Spark\'s checkpoint, which contains the '
        "offsets of all sources"
    )


def test_reset_of_unread_source_requires_config_and_reachable_broker(
    tmp_path: Path, run_reset: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the config describes a source that was never read. An unreachable broker is an error."""
    monkeypatch.setattr(kafka_broker, "SECONDS", 0.5)
    file = tmp_path / "p.toml"
    file.write_text(FILE.format(connection="lake", more='format = "json"', state=tmp_path / "s"))
    for dry in (True, False):
        assert run_reset("earliest", where=str(file), dry=dry).startswith(
            "error: there is no state yet; start the pipeline"
        )
    assert not (tmp_path / "s").exists()
    commit_two_epochs(lambda: FilesStore(tmp_path / "s", "p"), sources={"events": {}})
    offsets_json = '{"events": {"clicks": {"0": 1}}}'
    assert "this source has never been read, so the state does not know its partitions; pass the" in run_reset(
        offsets_json, where=str(tmp_path / "s")
    )
    assert "this source reads files, which have no offsets" in run_reset("latest", where=str(file))
    assert "none read" in run_reset("earliest", where=str(file), dry=True)
    file.write_text(FILE.format(connection="bus", more="", state=tmp_path / "s"))
    for offsets in (offsets_json, "latest"):
        assert "Kafka at 127.0.0.1:1 cannot be reached" in run_reset(offsets, where=str(file))
