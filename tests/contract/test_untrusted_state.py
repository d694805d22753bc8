"""Untrusted states: names, numbers, modules and links are checked, and an incomplete fork is detected."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.local_pipeline_script import MicroBatch, run_local_script

from slackwater.config.window import Aggregation, Window
from slackwater.errors import SlackwaterError, StartError, StateError
from slackwater.maintenance import verify_state
from slackwater.state.files.store import FilesStore
from slackwater.state.fork import fork_store
from slackwater.state.postgres.store import PostgresStore
from slackwater.storage.arrow_files import file_checksum

SECOND = 1_000_000
SESSION = Window(
    kind="session", gap_ms=1000, max_session_duration_ms=100_000, group_by=["k"], aggregations=[Aggregation(agg="count", as_="n")]
)  # fmt: skip
SCHEMA = {"k": "string"}
SCRIPT = [MicroBatch({"a": [{"ts": e * 3 * SECOND + i, "k": f"u{i}"} for i in range(5)]}) for e in range(3)]


def run_and_open_store(directory: Path, script: Any = SCRIPT, flush: bool = False) -> FilesStore:
    run_local_script(SESSION, script, SCHEMA, flush=flush, state_dir=str(directory))
    return FilesStore(directory, "law")


def latest_manifest_path(store: FilesStore) -> Path:
    return Path(store.root) / "manifests" / f"{store.epochs()[-1]:09d}.json"


def rewrite_manifest(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the content of a record and give it a valid checksum."""
    record = json.loads(path.read_text().splitlines()[0])
    change(record)
    text = json.dumps(record)
    path.write_text(f"{text}\n{file_checksum(text.encode())}\n")


def find_newest_segment(record: dict[str, Any]) -> dict[str, Any]:
    """Return a segment that this commit added."""
    prefix = f"segments/{record['epoch']:09d}"
    return next(s for shard in record["stages"][0]["segments"] for s in shard if s["file"].startswith(prefix))


def repeat_first_stage(record: dict[str, Any]) -> None:
    for _ in range(5):
        record["stages"] = [*record["stages"], dict(record["stages"][0])]


LIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a file outside": lambda m: m["stages"][0]["segments"][0][0].update(file="../../../../../../etc/passwd"),
    "an absolute file": lambda m: m["stages"][0]["segments"][0][0].update(file="/etc/passwd"),
    "a hidden file": lambda m: m["stages"][0]["segments"][0][0].update(file="segments/.."),
    "an output outside": lambda m: m.update(output=[{"file": "../../x.arrow", "rows": 1}]),
    "offsets of text": lambda m: m["sources"]["a"].update(offsets={"clicks": {"0": "many"}}),
    "offsets before the first": lambda m: m["sources"]["a"].update(offsets={"clicks": {"0": -1}}),
    "offsets of no partition": lambda m: m["sources"]["a"].update(offsets={"clicks": {"first": 1}}),
    "offsets that are no table": lambda m: m["sources"]["a"].update(offsets=[1]),
    "a list outside": lambda m: m["sources"]["a"].update(offsets={"segments": ["../../../etc/passwd"]}),
    "letters applied outside": lambda m: m.update(replayed=["offsets/../../../x"]),
    "an id with a path": lambda m: m.update(state_id="../../x"),
    "a format of another age": lambda m: m.update(format=-(10**23)),
    "an endless format": lambda m: m.update(format=float("inf")),
    "a bound beyond numbers": lambda m: m["stages"][0]["fingerprint"].update(bounds_us=[0, 10**23]),
    "a column of no type": lambda m: m["stages"][0]["described"]["columns"].update(k=True),
    "columns that are a list": lambda m: m["stages"][0]["described"].update(columns=[]),
    "a watermark of 2^63": lambda m: m["stages"][0].update(watermark_us=2**63),
    "an event of 2^63": lambda m: m["stages"][0]["clocks"]["a"].update(max_event_us=-(2**63)),
    "rows of text": lambda m: m["stages"][0]["segments"][0][0].update(rows="many"),
    "no rows": lambda m: m["stages"][0]["segments"][0][0].update(rows=0),
    "fewer rows": lambda m: m["stages"][0]["segments"][0][0].update(rows=1),
    "negative rows": lambda m: m["stages"][0]["segments"][0][0].update(rows=-1),
    "due at 2^64": lambda m: m["stages"][0]["segments"][0][0].update(first_due=2**64),
    "a billion shards": lambda m: m.update(shards=10**9),
    "three shards of two": lambda m: m.update(shards=3),
    "negative groups": lambda m: m["stages"][0].update(groups=[-5, -5]),
    "panes of another number of shards": lambda m: m["stages"][0].update(panes={"0": [1]}),
    "a counter of text": lambda m: m["stages"][0]["counters"].update(rows_in="x"),
    "a counter that is none": lambda m: m["stages"][0]["counters"].update(evil=1),
    "a counter that is a table": lambda m: m["stages"][0]["counters"].update(rows_used={"a": 1}),
    "a table of counters that is a number": lambda m: m["counters"].update(spent_us=5),
    "a table of tables of counters": lambda m: m["counters"]["spent_us"].update(read={"a": 1}),
    "a number as text": lambda m: m["stages"][0]["counters"].update(rows_in="5"),
    "a number with a fraction": lambda m: m["stages"][0].update(watermark_us=5.0),
    "a switch that is a number": lambda m: m["stages"][0].update(waiting=1),
    "a clock of text": lambda m: m["stages"][0]["clocks"]["a"].update(rows=[]),
    "half a character": lambda m: m["stages"][0].update(name="\ud800"),
    "no kind of window": lambda m: m["stages"][0]["fingerprint"].update(kind="join"),
    "a negative counter": lambda m: m["stages"][0]["counters"].update(late={"lateness": -1}),
    "a retention of text": lambda m: m["stages"][0].update(emission={"updates": False, "retain_us": "x"}),
    "six stages": repeat_first_stage,
    "another gap": lambda m: m["stages"][0]["fingerprint"].update(gap_ms=5),
    "other keys": lambda m: m["stages"][0]["fingerprint"].update(keys=["k bigint"]),
    "an aggregation of its own": lambda m: m["stages"][0]["described"]["window"]["aggregations"].append({"agg": "evil:X", "as": "x"}),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_invalid_commit_is_rejected_without_touching_any_file(lie: str, tmp_path: Path) -> None:
    store = run_and_open_store(tmp_path)
    rewrite_manifest(latest_manifest_path(store), LIES[lie])
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file() and p.name != "lock"}
    with pytest.raises(SlackwaterError) as raised:
        run_local_script(
            SESSION, [MicroBatch({"a": [{"ts": 99 * SECOND, "k": "u1"}]})], SCHEMA, state_dir=str(tmp_path)
        )
    assert len(str(raised.value).splitlines()) == 1
    reasons = ("damaged", "the commit says", "does not know", "this format cannot be migrated")
    assert any(words in str(raised.value) for words in reasons)
    assert {p: p.stat().st_mtime_ns for p in before} == before


@pytest.mark.parametrize(
    ("lie", "problem"),
    [
        (lambda m: find_newest_segment(m).update(first_due=2**61, last_due=2**61), "its rows have first_due"),
        (lambda m: find_newest_segment(m).update(dead=-5), "its rows have dead"),
        (lambda m: find_newest_segment(m).update(rows=77), "rows, but the commit says 77"),
        (lambda m: m["stages"][0].update(windows=[99, 99]), "the commit says"),
        (
            lambda m: m["stages"][0]["fingerprint"].update(gap_ms=5),
            "a fingerprint and a description that differ in gap_ms",
        ),
        (lambda m: m["stages"][0].update(watermark_us=2**63), "watermark_us"),
    ],
)
def test_verify_reports_commits_that_contradict_their_segments(lie: Any, problem: str, tmp_path: Path) -> None:
    store = run_and_open_store(tmp_path)
    assert verify_state(store).problems == []
    rewrite_manifest(latest_manifest_path(store), lie)
    assert problem in "\n".join(map(str, verify_state(store).problems))


def test_invalid_commit_in_postgres_is_rejected(postgres: Any) -> None:
    url = postgres.database("distrusted")

    def store() -> PostgresStore:
        return PostgresStore(url, "public", "law")

    run_local_script(SESSION, SCRIPT, SCHEMA, flush=False, store=store)
    with psycopg.connect(url, autocommit=True) as db:
        (record,) = db.execute("SELECT record FROM slackwater_pipelines").fetchone() or ({},)
        for lie, change in LIES.items():
            # Postgres has tables instead of files, and its JSON rejects infinite numbers and lone surrogates
            if lie in ("no rows", "fewer rows", "an endless format", "half a character"):
                continue
            changed = json.loads(json.dumps(record))
            change(changed)
            db.execute("UPDATE slackwater_pipelines SET record = %s", (json.dumps(changed),))
            with pytest.raises(SlackwaterError, match=r"damaged|does not know"):
                run_local_script(SESSION, SCRIPT[:1], SCHEMA, store=store)
        changed = json.loads(json.dumps(record))
        changed["stages"][0]["fingerprint"]["gap_ms"] = 5
        db.execute("UPDATE slackwater_pipelines SET record = %s", (json.dumps(changed),))
        assert "differ in gap_ms" in "\n".join(map(str, verify_state(store()).problems))


def test_reading_a_state_imports_no_module_named_in_the_state(tmp_path: Path) -> None:
    store = run_and_open_store(tmp_path / "state")
    rewrite_manifest(latest_manifest_path(store), LIES["an aggregation of its own"])
    rewrite_manifest(
        latest_manifest_path(store), lambda m: m["stages"][0]["fingerprint"]["aggregations"].update(x="X(; n bigint)")
    )
    evil = "import pathlib, slackwater\npathlib.Path(__file__).with_name('RUN').touch()\nclass X(slackwater.Aggregator): pass\n"
    (tmp_path / "evil.py").write_text(evil)
    program = Path(sys.executable).with_name("slackwater")
    for command in (["get", "k=u1"], ["find-sessions", "k=u1"], ["verify"], ["show"], ["compact"]):
        command_line = [program, "state", command[0], str(tmp_path / "state"), *command[1:]]
        done = subprocess.run(
            command_line, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
        )
        assert not (tmp_path / "RUN").exists(), command
        assert "Traceback" not in done.stderr
        if command[0] == "get":
            assert "never imports code when it reads a state" in done.stdout + done.stderr


def test_lock_is_never_written_through_a_symbolic_link(tmp_path: Path) -> None:
    store, precious = run_and_open_store(tmp_path / "state"), tmp_path / "precious"
    precious.write_text("precious")
    lock, pending = Path(store.root) / "lock", Path(store.root) / ".published"
    lock.unlink()
    lock.symlink_to(precious)
    with pytest.raises(StateError, match=r"lock .* is a symbolic link; expected a writable file; remove it"):
        store.open()
    lock.unlink()
    os.mkfifo(lock)
    with pytest.raises(StateError, match="is not a file; remove it"):
        store.open()
    lock.unlink()
    pending.symlink_to(precious)
    with pytest.raises(SlackwaterError, match="cannot be written"):
        run_local_script(SESSION, SCRIPT[:1], SCHEMA, state_dir=str(tmp_path / "state"))
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("after", [1, 2, 3])
def test_killed_fork_can_be_repeated_under_the_same_name(after: int, tmp_path: Path) -> None:
    """SIGKILL ends the fork after it has linked `after` files."""
    store = run_and_open_store(tmp_path)
    code = (
        "import os, sys\nfrom slackwater.storage import local\nfrom slackwater.state.files.store import FilesStore\n"
        "done, link = [], local._link\n"
        "def dies(*given):\n    link(*given)\n    done.append(1)\n"
        f"    len(done) == {after} and os.kill(os.getpid(), 9)\n"
        "local._link = dies\nFilesStore(sys.argv[1], 'law').fork('other')\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == -9
    assert list((tmp_path / "other" / "segments").iterdir())
    with pytest.raises(StateError, match="contains an incomplete fork; remove the directory, or repeat the fork"):
        FilesStore(tmp_path, "other").open()
    fork = fork_store(store, "other")
    assert (fork.pipeline, fork.epoch) == ("other", store.epochs()[-1])
    assert not (tmp_path / "other" / "forking").exists()
    assert verify_state(FilesStore(tmp_path, "other")).problems == []
    with pytest.raises(StateError, match="already has a state"):
        fork_store(store, "other")


def test_fork_does_not_overwrite_a_damaged_state(tmp_path: Path) -> None:
    store, other = run_and_open_store(tmp_path), tmp_path / "other" / "segments"
    other.mkdir(parents=True)
    (other / "000000007-000-aaaaaaaaaaaa.arrow").write_bytes(b"of a state whose manifests are lost")
    with pytest.raises(StateError, match="contains no manifest"):
        fork_store(store, "other")
    assert [p.name for p in other.iterdir()] == ["000000007-000-aaaaaaaaaaaa.arrow"]
    with pytest.raises(StartError, match="a name of 300 characters, expected at most 200"):
        fork_store(store, "a" * 300)


@pytest.mark.parametrize("kind", ["session", "tumbling"])
def test_shard_without_new_rows_drops_closed_windows(kind: str, tmp_path: Path) -> None:
    """The first epoch has 2000 groups. Later epochs have one key of one shard."""
    shape: dict[str, Any] = {"duration_ms": 1000, "max_groups_per_window": 10**6}
    window = (
        SESSION if kind == "session" else Window(kind=kind, group_by=["k"], aggregations=SESSION.aggregations, **shape)
    )
    script = [MicroBatch({"a": [{"ts": i * 100, "k": f"u{i}"} for i in range(2000)]})]
    script += [MicroBatch({"a": [{"ts": 3 * SECOND * (e + 1), "k": "x"}]}) for e in range(3)]
    result = run_local_script(window, script, SCHEMA, flush=False, state_dir=str(tmp_path), shards=4)
    store = FilesStore(tmp_path, "law")
    commit = store.open()
    store.close()
    assert commit is not None
    assert sum(m.rows for m in commit.metas) < 10
    assert verify_state(store).problems == []
    assert len(result.rows) == 2002
