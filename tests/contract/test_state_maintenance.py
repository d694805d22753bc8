"""`state verify`, `sizes`, `history` and `compact` on every store, with intact and damaged states."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
from tests.laws.fuzzers import fuzz_state_files
from tests.laws.generators import seed_runner
from tests.support.case_selection import select_cases
from tests.support.local_pipeline_script import LocalResult, run_local_script
from tests.support.single_stage_components import replace_stage_fields
from typer.testing import CliRunner

from slackwater.cli.main import app
from slackwater.errors import LockHeldError, StartError, StateError
from slackwater.evolution.pipeline_from_state import restore_operator
from slackwater.maintenance import compact as compacting
from slackwater.maintenance import verify_rows, verify_state
from slackwater.maintenance.compact import compact_state
from slackwater.maintenance.state_sizes import find_hot_keys, measure_state_sizes
from slackwater.state.commit import Commit
from slackwater.state.files.store import FilesStore
from slackwater.state.postgres.store import PostgresStore
from slackwater.storage.arrow_files import file_checksum, write_arrow

NAME, CUT = "law", 12


@dataclass
class StateLocation:
    """The location of the state of one pipeline."""

    where: str
    make: Callable[[], Any]

    def run_batches(self, case: str, begin: int, end: int, flush: bool = False) -> LocalResult:
        case_spec = fuzz_state_files.CASES[case]
        items = fuzz_state_files.draw_batches(case)[begin:end]
        return run_local_script(
            case_spec.step,
            items,
            fuzz_state_files.SCHEMA,
            case_spec.sources,
            flush=flush,
            downstream=case_spec.then,
            store=self.make,
        )

    def run_state_command(self, *arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["state", *arguments])
        assert done.exit_code == code, (done.output, done.exception)
        return done.output


@pytest.fixture(autouse=True)
def silence_warnings() -> None:
    seed_runner.hide_warnings()


@pytest.fixture(params=select_cases(["files", "postgres", "objects"], keep=2))
def state_location(request: pytest.FixtureRequest, tmp_path: Path) -> StateLocation:
    if request.param == "files":
        return StateLocation(str(tmp_path / "state"), lambda: FilesStore(tmp_path / "state", NAME))
    if request.param == "objects":
        bucket = request.getfixturevalue("bucket")
        return StateLocation(bucket, lambda: FilesStore(bucket, NAME))
    return create_postgres_location(request)


def create_postgres_location(request: pytest.FixtureRequest) -> StateLocation:
    url = request.getfixturevalue("postgres").database(f"upkeep_{abs(hash(request.node.name)):x}")

    def make() -> PostgresStore:
        store = PostgresStore(url, "public", NAME)
        request.addfinalizer(store.close)
        return store

    return StateLocation(url, make)


@pytest.fixture
def files_location(tmp_path: Path) -> StateLocation:
    return StateLocation(str(tmp_path), lambda: FilesStore(tmp_path, NAME))


@pytest.fixture
def postgres_location(request: pytest.FixtureRequest) -> StateLocation:
    return create_postgres_location(request)


# -- verify ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", select_cases(["sessions", "hopping", "updates", "stages"]))
def test_verify_reports_an_intact_state_as_sound(case: str, state_location: StateLocation) -> None:
    state_location.run_batches(case, 0, CUT)
    text = state_location.run_state_command("verify", state_location.where)
    assert re.match(r"law: sound \(epochs? .*\d+ (files|tables), \d+ rows, .* KiB, \d+\.\d s\)", text), text
    report = json.loads(state_location.run_state_command("verify", state_location.where, "--json"))
    assert (report["problems"], report["unread"], report["sound"]) == ([], 0, CUT - 1)
    assert report["rows"] > 3


def test_verify_and_sizes_take_no_lock_while_a_runner_is_active(state_location: StateLocation) -> None:
    state_location.run_batches("sessions", 0, CUT)
    runner = state_location.make()
    runner.open()
    assert verify_state(state_location.make()).problems == []
    assert measure_state_sizes(state_location.make()).epoch == CUT - 1
    runner.close()


def test_verify_ignores_files_removed_by_a_concurrent_runner(files_location: StateLocation, tmp_path: Path) -> None:
    """Remove old commits and their files between the listing of the commits and the check of the files."""
    files_location.run_batches("sessions", 0, CUT)

    class Slow(FilesStore):
        def manifest(self, epoch: int) -> Commit:
            commit = super().manifest(epoch)
            if epoch == CUT - 1:
                runner = FilesStore(tmp_path, NAME)
                runner.open()
                runner.collect_garbage()
                runner.close()
            return commit

    report = verify_state(Slow(tmp_path, NAME))
    assert [*map(str, report.problems)] == []
    assert report.epochs == tuple(range(CUT - 8, CUT))


def test_verify_problems_name_the_file_and_the_remedy(files_location: StateLocation, tmp_path: Path) -> None:
    files_location.run_batches("sessions", 0, CUT)
    store, home = FilesStore(tmp_path, NAME), tmp_path / NAME
    files_by_epoch = {e: {m.file for m in store.manifest(e).metas} for e in store.epochs()}
    latest = files_by_epoch.pop(CUT - 1)
    new = min(latest - files_by_epoch[CUT - 2])
    old = min(file for e in range(4, CUT - 1) for file in files_by_epoch[e] - files_by_epoch[e - 1] - latest)
    (home / new).unlink()
    (home / old).write_bytes(b"")
    (home / "manifests" / "copy of 3.json").write_text("{}")
    text = files_location.run_state_command("verify", files_location.where, code=1)
    assert re.search(
        rf"{home / new}: is missing; restore it from a copy of the state directory, or start from epoch \d+, the last sound "
        r"commit: slackwater state fork WHERE NEW --at \d+\n",
        text,
    )
    assert re.search(
        rf"{home / old}: is truncated; it is needed only by epochs? .*, and a run continues without it; ", text
    )
    assert "copy of 3.json: is not a manifest; move it elsewhere; nothing reads it" in text
    last = text.splitlines()[-1]
    assert re.match(r"law: 3 problems, epoch \d+ is the last sound commit \(epochs 0 to 11, ", last), last


def rewrite_manifest(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Rewrite a manifest with a valid checksum."""
    data = json.loads(path.read_text().splitlines()[0])
    edit(data)
    text = json.dumps(data)
    path.write_text(f"{text}\n{file_checksum(text.encode())}\n")


def test_verify_detects_wrong_rows_and_counts_with_valid_checksums(
    files_location: StateLocation, tmp_path: Path
) -> None:
    """Write valid checksums, as a bug would, but wrong key hashes, a wrong key count and a wrong close time."""
    files_location.run_batches("sessions", 0, CUT)
    store, home = FilesStore(tmp_path, NAME), tmp_path / NAME
    latest = store.manifest(CUT - 1)
    meta = latest.stages[0].segments[0][-1]
    assert len(latest.stages[0].segments[0]) > 1
    frame = pl.read_ipc((home / meta.file).read_bytes())
    size, digest = write_arrow(home / meta.file, frame.with_columns(pl.col("__kh") + 1))

    def edit(data: dict[str, Any]) -> None:
        data["stages"][0]["segments"][0][-1] |= {"bytes": size, "checksum": digest}
        data["stages"][0]["groups"][1] += 1
        data["stages"][0]["segments"][0][0]["close"] += 7

    for epoch in store.epochs()[:-1]:
        (home / "manifests" / f"{epoch:09d}.json").unlink()
    rewrite_manifest(home / "manifests" / f"{CUT - 1:09d}.json", edit)
    problems = [*map(str, verify_state(store).problems)]
    for pattern in (
        rf"{meta.file}: holds \d+ rows? whose hash does not match their key, first row 0; restore it from .*no kept commit is",
        r"its rows have close -?\d+, but the commit says -?\d+; ",
        r"manifests/000000011.json: shard 1 holds \d+ keys with \d+ open intervals, but the commit says \d+ with \d+; ",
    ):
        assert any(re.search(pattern, text) for text in problems), (pattern, problems)


@pytest.mark.parametrize(
    ("change", "message"),
    select_cases(
        [
            (pl.col("__h").reverse(), "not in the order of their units"),
            (pl.lit(7, pl.Int8).alias("__kind"), "of an unknown kind"),
            (pl.col("__last") - 10**9, "that end before they start"),
            (pl.col("__due") + 1, "whose due time does not match their gap"),
            (pl.lit(None, pl.Int64).alias("__due"), "NULL in the columns __due"),
            (pl.col("__start").cast(pl.Int32), 'column "__start" is Int32, expected Int64'),
            (pl.col("u").alias("u2"), ""),
        ],
        keep=3,
    ),
)
def test_invalid_session_rows_are_reported(change: pl.Expr, message: str, files_location: StateLocation) -> None:
    files_location.run_batches("sessions", 0, CUT)
    with files_location.make().peek() as snapshot:
        logic = restore_operator(snapshot.commit)
        frame = snapshot.reader(0, logic).scan().sort("__h", maintain_order=True)
    assert list(verify_rows.check_segment_rows(logic, "", frame, 0, 2)) == []
    problems = list(verify_rows.check_segment_rows(logic, "", frame.with_columns(change), 0, 2))
    assert any(message in text for text in problems) if message else problems == []
    assert any(
        "that do not belong to shard 1" in text for text in verify_rows.check_segment_rows(logic, "", frame, 1, 2)
    )
    assert list(verify_rows.check_segment_rows(logic, "", frame.drop("n.n"), 0, 2)) == ["columns are missing: n.n"]


def test_invalid_pane_and_join_rows_are_reported(tmp_path: Path) -> None:
    for case, change, message in (
        ("hopping", {"__start": 1}, "that do not start with a pane"),
        ("hopping", {"__due": 1}, "whose due time does not match their pane"),
        ("join", {"__kh": 2}, "whose hash does not match their key"),
    ):
        home = StateLocation(str(tmp_path / case), lambda home=tmp_path / case: FilesStore(home, NAME))  # type: ignore[misc]
        home.run_batches(case, 0, CUT)
        latest = home.make().manifest(CUT - 1)
        step, meta = restore_operator(latest), latest.stages[0].segments[0][0]
        frame = pl.read_ipc((tmp_path / case / NAME / meta.file).read_bytes())
        wrong = frame.with_columns(pl.col(c) + n for c, n in change.items())
        assert list(verify_rows.check_segment_rows(step, meta.kind, frame, 0, 2)) == []
        assert any(message in text for text in verify_rows.check_segment_rows(step, meta.kind, wrong, 0, 2))
    assert list(verify_rows.check_segment_rows(step, "middle", frame, 0, 2)) == ["rows of an unknown kind: 'middle'"]


def test_restore_rejects_a_state_that_does_not_describe_the_join(files_location: StateLocation) -> None:
    files_location.run_batches("join", 0, 3)
    latest = files_location.make().manifest(2)
    with pytest.raises(StateError, match="the state in epoch 2 does not fully describe its join; restore"):
        restore_operator(replace_stage_fields(latest, fingerprint={"kind": "join"}))


@pytest.mark.parametrize(
    ("damage", "message"),
    select_cases([
        ("DELETE FROM slackwater_state_law WHERE ordinal = 0", r"slackwater_state_law\W+\d+ units? with missing rows"),
        ("DELETE FROM slackwater_state_law WHERE unit = (SELECT min(unit) FROM slackwater_state_law WHERE kind <> 2)",
         r"shard \d: \d+ keys with \d+ open intervals, but the commit says \d+ with \d+"),
        ("UPDATE slackwater_state_law SET u = 'zz' WHERE u = 'a'", r"\d+ rows? whose hash does not match their key"),
        ("UPDATE slackwater_state_law SET epoch = 99 WHERE ordinal = 0", r"\d+ rows of another pipeline, or of an epoch after 11"),
        ('ALTER TABLE slackwater_state_law DROP COLUMN "n.n" CASCADE', r'column "n.n" is missing, expected bigint'),
        ("DROP TABLE slackwater_state_law CASCADE", r'"slackwater_state_law": is missing; restore it from a backup'),
        ("DROP TABLE slackwater_lists", r'"slackwater_lists": is missing; restore it from a backup'),
        ("UPDATE slackwater_pipelines SET record = record || '{\"shards\": \"x\"}'", r"record of .* is damaged: 1 field does not fit"),
        ("UPDATE slackwater_pipelines SET state_version = 9", r"has format 9, but this version reads formats 1 to 3; install a newer"),
        ("UPDATE slackwater_pipelines SET published_epoch = 99", r"epoch 99 is recorded as published, but the latest is 11"),
        ("UPDATE slackwater_pipelines SET epoch = 3", r"its epoch is 3, but its record has epoch 11"),
        ("UPDATE slackwater_pipelines SET record = record || '{\"pipeline\": \"other\"}'", r"its record belongs to the pipeline 'other'"),
        ("UPDATE slackwater_pipelines SET watermark = now()", r"its watermark differs from the watermark in its record"),
        ("INSERT INTO slackwater_offsets VALUES ('law', 'x', '0', '5', now(), false, 1, 11)",
         r"source 'x', partition '0': found offset 5, but the record has None"),
    ], keep=4),
)  # fmt: skip
def test_verify_reports_damaged_postgres_tables(damage: str, message: str, postgres_location: StateLocation) -> None:
    postgres_location.run_batches("sessions", 0, CUT)
    with psycopg.connect(postgres_location.where) as db:
        db.execute(damage)
    text = postgres_location.run_state_command("verify", postgres_location.where, code=1)
    assert re.search(message, text), text
    assert "no commit is sound" in text.splitlines()[-1]


def test_verify_checks_unpublished_outputs_in_postgres(postgres_location: StateLocation) -> None:
    postgres_location.run_batches("sessions", 0, CUT)
    with psycopg.connect(postgres_location.where) as db:
        commit = Commit.model_validate(db.execute("SELECT record FROM slackwater_pipelines").fetchone()[0])
        db.execute("UPDATE slackwater_pipelines SET published_epoch = -1")
    assert commit.output
    assert "is missing; epoch 11 is not published yet" in postgres_location.run_state_command(
        "verify", postgres_location.where, code=1
    )
    with psycopg.connect(postgres_location.where) as db:
        for meta in commit.output:
            db.execute("INSERT INTO slackwater_outputs VALUES (%s, 'law', 11, 'x')", (meta.file,))
    assert re.search(
        r"cannot be read \(ArrowInvalid\)",
        postgres_location.run_state_command("verify", postgres_location.where, code=1),
    )


@pytest.mark.parametrize("look", [verify_state, measure_state_sizes])
def test_unexpected_postgres_columns_are_reported_as_state_errors(look: Any, postgres_location: StateLocation) -> None:
    postgres_location.run_batches("sessions", 0, 3)
    with psycopg.connect(postgres_location.where) as db:
        db.execute("ALTER TABLE slackwater_outputs RENAME token TO other")
        db.execute("ALTER TABLE slackwater_outputs RENAME data TO others")
        db.execute("UPDATE slackwater_pipelines SET published_epoch = -1")
    with pytest.raises(StateError, match=r'state store in schema "public" of .*: column "\w+" does not exist'):
        look(postgres_location.make())


# -- states that the files store rejects -------------------------------------------------------------------------------


def test_files_store_rejects_an_inconsistent_directory(files_location: StateLocation, tmp_path: Path) -> None:
    files_location.run_batches("sessions", 0, CUT)
    sound, home = tmp_path / "sound", tmp_path / NAME
    shutil.copytree(home, sound)
    manifests = home / "manifests"
    latest = manifests / f"{CUT - 1:09d}.json"

    def refused(message: str) -> None:
        with pytest.raises(StateError, match=message):
            files_location.make().open()
        shutil.rmtree(home)
        shutil.copytree(sound, home)

    latest.write_bytes((manifests / f"{CUT - 3:09d}.json").read_bytes())
    refused(
        r'000000011.json was overwritten with another manifest: found epoch 9 of "law", expected epoch 11 of "law"; '
    )
    rewrite_manifest(latest, lambda data: data.update(pipeline="other"))
    refused(r'found epoch 11 of "other", expected epoch 11 of "law"')
    rewrite_manifest(latest, lambda data: data.update(state_id="x"))
    refused(
        r"000000011.json belongs to another state: found state_id 'x', expected '\w+' as in the earlier commits; restore it"
    )
    latest.unlink()
    refused(r"000000011.json is missing: .*published says that epoch 11 was published, but the latest manifest belongs")
    shutil.rmtree(manifests)
    (home / "published").unlink()
    refused(r"manifests contains no manifest, but .*000000001-.*\.arrow belongs to epoch 1; restore the manifests from")
    (home / "published").write_text("11 0123456789abcdef")
    refused(r"published is damaged; restore the file from a backup of the directory, or remove the file: the next")
    (home / "published").unlink()
    (home / "published").mkdir()
    refused(r"published cannot be read \(Is a directory\); check its permissions")
    (home / "published").write_text("11")  # in the format of earlier versions
    store = files_location.make()
    assert store.open() is not None
    assert store.published_epoch() == 11
    store.close()


def test_verify_reports_missing_manifests(files_location: StateLocation, tmp_path: Path) -> None:
    files_location.run_batches("sessions", 0, CUT)
    for path in (tmp_path / NAME / "manifests").iterdir():
        path.unlink()
    text = files_location.run_state_command("verify", files_location.where, code=1)
    assert "manifests contains no manifest, but" in text
    assert "no commit is sound (no commit, 0 files" in text


# -- sizes and history ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", select_cases(["sessions", "stages"]))
def test_sizes_of_shards_and_garbage_add_up_to_the_disk_usage(case: str, state_location: StateLocation) -> None:
    state_location.run_batches(case, 0, CUT)
    sizes = measure_state_sizes(state_location.make(), 3)
    with state_location.make().peek() as snapshot:
        latest = snapshot.commit
    assert {(s.stage, s.shard) for s in sizes.shards} == {(n, s) for n in range(len(latest.stages)) for s in (0, 1)}
    assert sizes.epoch == CUT - 1
    text = state_location.run_state_command("sizes", state_location.where, "--hot-keys", "3")
    assert text.startswith(f"law, epoch {CUT - 1}: ")
    if sizes.tables:
        assert {t.table.split(".")[1] for t in sizes.tables} >= {'"slackwater_state_law"', '"slackwater_outputs"'}
        assert all(t.bytes >= 0 for t in sizes.tables)
        assert "dead rows" in text
        return
    weights = state_location.make().storage.sizes("segments")
    on_disk, named_files = sum(weights.values()), list_referenced_files(state_location)
    garbage = sum(weight for name, weight in weights.items() if f"segments/{name}" not in named_files)
    assert sizes.state_bytes == latest.state_bytes == sum(s.bytes or 0 for s in sizes.shards)
    assert on_disk == sizes.state_bytes + sizes.only_kept[1] + garbage
    assert sizes.kept == list(range(CUT))
    assert json.loads(state_location.run_state_command("sizes", state_location.where, "--json"))["garbage"] == list(
        sizes.garbage
    )


def list_referenced_files(place: StateLocation) -> set[str]:
    store = place.make()
    manifests = [store.manifest(e) for e in store.epochs()]
    return {m.file for commit in manifests for m in commit.metas}


def test_hot_keys_are_those_with_the_most_rows_and_events(state_location: StateLocation) -> None:
    state_location.run_batches("sessions", 0, CUT)
    with state_location.make().peek() as snapshot:
        logic = restore_operator(snapshot.commit)
        everything = pl.concat([snapshot.reader(s, logic).scan() for s in (0, 1)])
        hottest = find_hot_keys(state_location.make(), snapshot, 2)
    counted = everything.group_by("u").agg(pl.len().alias("rows"), pl.col("n.n").filter(pl.col("__kind") != 2).sum())
    assert sorted(k.rows for k in hottest[:2]) == counted["rows"].sort(descending=True)[:2].sort().to_list()
    assert max(k.events or 0 for k in hottest) == counted["n.n"].max()


def test_history_lists_the_row_counts_of_each_epoch(state_location: StateLocation) -> None:
    result = state_location.run_batches("sessions", 0, CUT)
    rows = [
        json.loads(line)
        for line in state_location.run_state_command("history", state_location.where, "--json").splitlines()
    ]
    text = state_location.run_state_command("history", state_location.where)
    if len(rows) == 1:
        assert rows[0]["epoch"] == CUT - 1
        assert rows[0]["rows_in"] is None
        assert "A database keeps only the latest commit" in text
        return
    script = fuzz_state_files.draw_batches("sessions")[:CUT]
    assert [r["rows_in"] for r in rows] == [len(item.rows["a"]) for item in script]
    assert sum(r["late"] for r in rows) == result.counters.rows_late > 0
    assert sum(r["emitted"] for r in rows) == result.counters.rows_emitted
    assert rows[-1]["open"] == result.open_sessions
    assert text.splitlines()[0].split()[:3] == ["epoch", "committed", "watermark"]
    assert len(text.splitlines()) == 1 + CUT


def test_history_omits_damaged_commits(files_location: StateLocation, tmp_path: Path) -> None:
    files_location.run_batches("sessions", 0, CUT)
    (tmp_path / NAME / "manifests" / "000000004.json").write_text("{}")
    rows = [
        json.loads(line)
        for line in files_location.run_state_command("history", files_location.where, "--json").splitlines()
    ]
    assert [r["epoch"] for r in rows] == [e for e in range(CUT) if e != 4]
    assert [r["rows_in"] is None for r in rows] == [r["epoch"] == 5 for r in rows]


# -- compact -----------------------------------------------------------------------------------------------------------


def collect_target_rows(*results: LocalResult) -> list[dict[str, Any]]:
    """Return all rows that a target received, without epoch numbers."""
    rows = [
        {**r, "is": kind} for result in results for kind in ("rows", "gone", "letters") for r in getattr(result, kind)
    ]
    return sorted(({k: v for k, v in r.items() if k not in ("_epoch", "epoch")} for r in rows), key=repr)


@pytest.mark.parametrize("case", select_cases(["sessions", "updates", "stages"]))
def test_run_after_compact_gives_the_results_of_an_uncompacted_run(
    case: str, state_location: StateLocation, tmp_path: Path
) -> None:
    whole = StateLocation("", lambda: FilesStore(tmp_path / "other", NAME))
    expected = collect_target_rows(whole.run_batches(case, 0, CUT), whole.run_batches(case, CUT, 2 * CUT, flush=True))
    first = state_location.run_batches(case, 0, CUT)
    before = verify_state(state_location.make())
    done = json.loads(state_location.run_state_command("compact", state_location.where, "--json"))
    after = verify_state(state_location.make())
    assert (before.problems, after.problems) == ([], [])
    assert (done["before"]["epoch"], done["after"]["epoch"]) == (CUT - 1, CUT)
    assert sum(s["rows"] for s in done["after"]["shards"]) <= sum(s["rows"] for s in done["before"]["shards"])
    if isinstance(state_location.make(), FilesStore):
        sides = 2 if case in ("join", "stages") else 1
        assert all(s["segments"] <= sides for s in done["after"]["shards"])
        assert sum(s["segments"] for s in done["before"]["shards"]) >= sum(
            s["segments"] for s in done["after"]["shards"]
        )
        assert done["after"]["state_bytes"] <= done["before"]["state_bytes"]
    assert collect_target_rows(first, state_location.run_batches(case, CUT, 2 * CUT, flush=True)) == expected


def test_compact_prints_the_epochs_before_and_after(state_location: StateLocation) -> None:
    state_location.run_batches("sessions", 0, CUT)
    text = state_location.run_state_command("compact", state_location.where)
    assert [line.split()[:2] for line in text.splitlines()[:3]] == [
        ["epoch", "segments"],
        ["before", "11"],
        ["after", "12"],
    ]


def test_compact_fails_while_a_runner_has_the_lock(state_location: StateLocation) -> None:
    state_location.run_batches("sessions", 0, 3)
    runner = state_location.make()
    runner.open()
    with pytest.raises(LockHeldError, match=r"pipeline is already running: process \d+ .*; stop that process first"):
        compact_state(state_location.make())
    runner.close()


def test_compact_rejects_a_state_with_an_unpublished_epoch(files_location: StateLocation, tmp_path: Path) -> None:
    files_location.run_batches("sessions", 0, CUT)
    files_location.make().mark_published(CUT - 2)
    with pytest.raises(
        StateError,
        match="law: epoch 11 is committed but not yet published, and must be published before another commit; start",
    ):
        compact_state(files_location.make())
    assert files_location.make().epochs()[-1] == CUT - 1


def test_compact_rejects_a_state_with_an_unknown_emit_value(files_location: StateLocation, tmp_path: Path) -> None:
    files_location.run_batches("sessions", 0, 3)
    path = tmp_path / NAME / "manifests" / "000000002.json"
    rewrite_manifest(path, lambda data: data["stages"][0].update(emission={"updates": True, "retain_us": 0}))
    with pytest.raises(StateError, match="epoch 2 was rewritten for another value of emit, which the state does not"):
        compact_state(files_location.make())


@pytest.mark.parametrize("work", [compact_state, measure_state_sizes])
def test_compact_and_sizes_fail_when_the_state_does_not_exist(work: Any, state_location: StateLocation) -> None:
    with pytest.raises(StartError, match="there is no state yet; start the pipeline to create it: slackwater run"):
        work(state_location.make())


def test_failed_vacuum_is_reported_with_the_cause(postgres_location: StateLocation) -> None:
    postgres_location.run_batches("sessions", 0, 3)
    store = postgres_location.make()
    with pytest.raises(
        StateError, match=r'tables in schema "public" of .* could not be vacuumed \(relation .* does not exist'
    ):
        compacting._vacuum(store, 2)
    store.close()
