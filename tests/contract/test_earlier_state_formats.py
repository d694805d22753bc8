"""States in earlier formats: each store restores, reads and migrates them, and a run continues to the last row."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.fixtures.states import write_state_fixtures
from tests.fixtures.states.write_state_fixtures import HERE, KINDS, NAME, SHARDS, StateFixture
from tests.support.case_selection import select_cases
from tests.support.local_pipeline_script import LocalResult, MicroBatch

from slackwater import open_state
from slackwater.cli.main import main
from slackwater.errors import StateError
from slackwater.query.state_view import StateView
from slackwater.state import migrations
from slackwater.state.commit import FORMAT, Commit
from slackwater.state.files.store import FilesStore
from slackwater.state.postgres.store import PostgresStore
from slackwater.testing.memory_target import START_US

FORMATS = range(1, FORMAT + 1)
# all pairs of format and kind; the first len(KINDS) pairs cover every kind and every format
PAIRS = [(FORMATS[(n + k) % len(FORMATS)], kind) for n in range(len(FORMATS)) for k, kind in enumerate(KINDS)]
Make = Callable[[], Any]


@pytest.fixture(params=["files", "postgres"])
def restore_state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[int, str], Make]]:
    """Return a function that restores the state of a format and kind, and returns a function that opens its store."""
    stores: list[Any] = []

    def noted(store: Any) -> Any:
        stores.append(store)
        return store

    def restore(number: int, kind: str) -> Make:
        home = HERE / f"format-{number}"
        if request.param == "files":
            place = tmp_path / f"{number}" / kind
            shutil.copytree(home / "files" / kind, place)
            return lambda: noted(FilesStore(place, NAME))
        url = request.getfixturevalue("postgres").database(f"kept_{abs(hash((request.node.name, number, kind))):x}")
        with psycopg.connect(url) as db:
            db.execute((home / "postgres.sql").read_text())  # type: ignore[arg-type]
        return lambda: noted(PostgresStore(url, kind, NAME))

    yield restore
    for store in stores:
        store.close()


def state_location_arguments(store: Any) -> list[str]:
    """Return the command-line arguments that locate the store."""
    return [store.root] if isinstance(store, FilesStore) else [store._url, "--schema", store._schema]


def run_state_command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["slackwater", "state", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code


def run_uninterrupted_script(kind: StateFixture, home: Path) -> LocalResult:
    return write_state_fixtures.run_script_part(
        kind, lambda: FilesStore(home / "whole", NAME), kind.story, START_US, flush=True
    )


def run_second_half_of_script(kind: StateFixture, store: Make) -> LocalResult:
    return write_state_fixtures.run_script_part(kind, store, kind.story[kind.half :], kind.clock_us, flush=True)


@pytest.mark.parametrize(("number", "kind"), select_cases(PAIRS, keep=len(KINDS)))
def test_run_from_a_restored_state_emits_the_rows_of_an_uninterrupted_run(
    number: int, kind: str, restore_state: Callable[[int, str], Make], tmp_path: Path
) -> None:
    store, expected = restore_state(number, kind), run_uninterrupted_script(KINDS[kind], tmp_path)
    stored = store().read_commit_record()
    assert stored.version == number
    got, half = run_second_half_of_script(KINDS[kind], store), stored.record["epoch"]
    assert got.rows == [r for r in expected.rows if r["_epoch"] > half]
    assert got.rows
    assert got.gone == [r for r in expected.gone if r["_epoch"] > half]
    assert got.counters == expected.counters
    assert store().read_commit_record().version == FORMAT


@pytest.mark.parametrize("kind", ["sessions", "hopping", "chained"])
@pytest.mark.parametrize("number", FORMATS)
def test_restored_state_is_inspected_without_a_config(
    number: int, kind: str, restore_state: Callable[[int, str], Make], tmp_path: Path
) -> None:
    """Compare the scan with that of a current state that read the same input. The scan does not change the state."""
    store = restore_state(number, kind)
    write_state_fixtures.run_first_half(KINDS[kind], lambda: FilesStore(tmp_path / "today", NAME))
    expected = open_state(tmp_path / "today", NAME).scan()
    got = StateView(store()).scan()
    assert got.select(expected.columns).equals(expected)
    assert set(got["_status"]) == ({"open", "retained"} if kind == "sessions" else {"open"})
    assert store().read_commit_record().version == number


@pytest.mark.parametrize("number", FORMATS)
def test_inspecting_a_join_state_is_refused(number: int, restore_state: Callable[[int, str], Make]) -> None:
    with pytest.raises(StateError, match="belongs to a join; only windows can be inspected"):
        StateView(restore_state(number, "join")()).scan()


@pytest.mark.parametrize(("number", "kind"), select_cases((p for p in PAIRS if p[0] < FORMAT), keep=2))
def test_migrate_command_commits_the_new_format_without_other_changes(
    number: int,
    kind: str,
    restore_state: Callable[[int, str], Make],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store, expected = restore_state(number, kind), run_uninterrupted_script(KINDS[kind], tmp_path)
    before = store().read_commit_record()
    run_state_command(monkeypatch, "migrate", *state_location_arguments(store()), "--dry-run")
    output = capsys.readouterr().out
    assert output.startswith(f"law: epoch 3 has format {number}; this version writes format {FORMAT}\n  {number} -> ")
    assert output.endswith("nothing was changed (--dry-run)\n")
    assert ("adds described: {" in output) == (number == 1 and kind != "join")
    assert "  2 -> 3  holds all stages side by side" in output and "adds stages: [" in output
    assert store().read_commit_record() == before
    run_state_command(monkeypatch, "migrate", *state_location_arguments(store()))
    assert "committed as epoch 4, in format 3; earlier versions of slackwater cannot read it" in capsys.readouterr().out
    after = store().read_commit_record()
    assert (after.version, after.record["format"], after.record["epoch"]) == (FORMAT, FORMAT, 4)
    migrated = Commit.model_validate(migrations.migrate_record(before.record, number, "state"))
    same = {"epoch", "committed_us", "commit_id", "output", "letters", "emitted"}
    assert after.record == json.loads(migrated.model_dump_json()) | {k: after.record[k] for k in same}
    run_state_command(monkeypatch, "migrate", *state_location_arguments(store()))
    assert capsys.readouterr().out == (f"law: epoch 4 already has the current format, {FORMAT}\n")
    plain = [{k: v for k, v in r.items() if k != "_epoch"} for r in expected.rows if r["_epoch"] > 3]
    assert [
        {k: v for k, v in r.items() if k != "_epoch"} for r in run_second_half_of_script(KINDS[kind], store).rows
    ] == plain


@pytest.mark.parametrize("kind", select_cases(KINDS))
def test_start_converts_tables_of_format_1_to_the_current_format(
    kind: str, postgres: Any, request: pytest.FixtureRequest
) -> None:
    """Convert the tables in the transaction of the start."""
    url = postgres.database(f"tables_{kind}")
    with psycopg.connect(url) as db:
        db.execute((HERE / "format-1" / "postgres.sql").read_text())  # type: ignore[arg-type]
    write_state_fixtures.run_script_part(
        KINDS[kind], lambda: PostgresStore(url, kind, NAME), (), KINDS[kind].clock_us, flush=False
    )

    def ask(query: str) -> Any:
        with psycopg.connect(url) as db:
            return db.execute(query).fetchall()  # type: ignore[arg-type]

    assert ask(f"SELECT state_version, epoch, record -> 'format' FROM \"{kind}\".slackwater_pipelines") == [
        (FORMAT, 3, FORMAT)
    ]
    assert ask(f'SELECT DISTINCT state_version FROM "{kind}".slackwater_offsets') == [(FORMAT,)]
    assert ask(f'SELECT DISTINCT state_version FROM "{kind}".slackwater_state_law') == [(1,)]
    run_second_half_of_script(KINDS[kind], lambda: PostgresStore(url, kind, NAME))
    write_state_fixtures.run_script_part(
        KINDS[kind], lambda: PostgresStore(url, kind, NAME), (MicroBatch({s: [{"ts": 10**12, "user": "z"}] for s in KINDS[kind].sources}),),
        KINDS[kind].clock_us, flush=False,
    )  # fmt: skip
    assert ask(f'SELECT state_version FROM "{kind}".slackwater_state_law WHERE epoch > 3 LIMIT 1') == [(FORMAT,)]


def test_migration_requires_the_lock_and_published_output(
    restore_state: Callable[[int, str], Make], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = restore_state(1, "sessions")
    runner = store()
    runner.open()
    assert run_failing_state_command(monkeypatch, capsys, "migrate", *state_location_arguments(store())).startswith(
        "error: pipeline is already running: process "
    )
    runner.close()
    mark_last_epoch_unpublished(runner)
    assert run_failing_state_command(monkeypatch, capsys, "migrate", *state_location_arguments(store())) == (
        "error: law: epoch 3 was committed, but its output is not published yet; start the runner once to publish it, then repeat the command\n"
    )
    assert store().read_commit_record().version == 1


def run_failing_state_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> str:
    monkeypatch.setattr(sys, "argv", ["slackwater", "state", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    return capsys.readouterr().err


def mark_last_epoch_unpublished(store: Any) -> None:
    """Make the state look as if the runner was killed between commit and publication."""
    if isinstance(store, FilesStore):
        (Path(store.root) / "published").write_text("2")
        return
    with psycopg.connect(store._url) as db:
        db.execute(f"UPDATE {store.tables.pipelines} SET published_epoch = 2")


def test_every_format_has_a_small_state_fixture_of_each_kind() -> None:
    for number in FORMATS:
        home = HERE / f"format-{number}"
        assert {p.name for p in (home / "files").iterdir()} == set(KINDS)
        assert sum(p.stat().st_size for p in home.rglob("*") if p.is_file()) < 300_000
        for kind in KINDS:
            latest = max((home / "files" / kind / NAME / "manifests").glob("*.json"))
            record = json.loads(latest.read_text().splitlines()[0])
            assert (record["format"], record["shards"]) == (number, SHARDS)
