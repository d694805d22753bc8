"""Seeded corruptions of a state directory: each is reported with the file name, or is harmless. No row is ever wrong.

    python -m tests.laws.fuzzers.fuzz_state_files --runs 1000 --seed 1         # prints the seed of a failed run
    python -m tests.laws.fuzzers.fuzz_state_files --only 4711                  # repeats one run

A pipeline runs for some thirty epochs and stops. In half of the seeds, its last epoch is committed but not published.
The seed then damages one or more files of the state: bits, file ends, ranges, whole files, or files in each other's
places. `verify` checks the damaged state. The pipeline is then started again and reads the rest of its rows.
"""

from __future__ import annotations

import atexit
import functools
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.laws.generators import seed_runner
from tests.support.local_pipeline_script import DeadLetterReplay, LocalResult, MicroBatch, run_local_script

from slackwater.config.join import Join
from slackwater.config.window import Aggregation, Window
from slackwater.errors import SlackwaterError
from slackwater.maintenance import verify_state
from slackwater.maintenance.verify_rows import VerifyReport
from slackwater.state.commit import Commit
from slackwater.state.files.store import KEPT_EPOCHS, FilesStore

MS = 1000
SCHEMA = {"u": "string", "id": "bigint", "page": "string"}
AGGREGATIONS = (
    Aggregation(agg="count", as_="n"),
    Aggregation(agg="sum", column="id", as_="ids"),
    Aggregation(agg="last", column="page", as_="page"),
    Aggregation(agg="collect_set", column="page", as_="pages", max_values_per_group=100),
)
STOPS = 30  # batches before the damage; garbage is collected two epochs later
BATCHES = 34
NAME = "law"  # name of the test kit's pipelines


@dataclass(frozen=True)
class PipelineCase:
    """Pipeline of a run: its steps and its sources."""

    step: Window | Join
    sources: tuple[str, ...] = ("a",)
    then: Window | None = None
    replays: bool = False  # whether dead letters are replayed during the run


def _build_window(kind: str, **more: Any) -> Window:
    shape: dict[str, Any] = {"max_groups_per_window": 1000}
    if kind == "session":
        shape = {"gap_ms": 40, "max_session_duration_ms": 400}
    elif kind == "hopping":
        shape |= {"duration_ms": 90, "hop_ms": 30}
    else:
        shape |= {"duration_ms": 60}
    settings = {"lateness_ms": 30, "emit_metadata": True, "aggregations": AGGREGATIONS} | more
    return Window(kind=kind, group_by=["u"], **shape, **settings)


def _build_join(**more: Any) -> Join:
    columns = {"left_keys": ["u"], "right_keys": ["u"], "left_source": "a", "right_source": "b"}
    return Join(kind="full", time_window_ms=60, lateness_ms=30, **columns, **more)


CASES: Mapping[str, PipelineCase] = {
    "sessions": PipelineCase(_build_window("session", late_data="reopen", allowed_lateness_ms=80)),
    "letters": PipelineCase(_build_window("session", late_data="dlq"), replays=True),
    "hopping": PipelineCase(_build_window("hopping", late_data="reopen", allowed_lateness_ms=80)),
    "updates": PipelineCase(_build_window("tumbling", emit="updates")),
    "join": PipelineCase(_build_join(late_data="dlq"), ("a", "b")),
    "stages": PipelineCase(
        _build_join(),
        ("a", "b"),
        Window(
            kind="tumbling",
            duration_ms=60,
            group_by=["left_u"],
            max_groups_per_window=1000,
            aggregations=[Aggregation(agg="count", as_="n"), Aggregation(agg="sum", column="right_id", as_="ids")],
        ),
    ),
}


def draw_batches(case: str) -> list[MicroBatch]:
    """Return batches with rows of eleven users. Some rows are late."""
    rng, now, number, batches = random.Random(case), 0, 0, list[MicroBatch]()
    for _ in range(BATCHES):
        rows_by_source: dict[str, list[dict[str, Any]]] = {s: [] for s in CASES[case].sources}
        for _ in range(rng.randint(6, 14)):
            now += rng.choice([0, 1, 3, 7])
            number += 1
            row = {"ts": (now - rng.choice([0, 0, 5, 20, 70, 150])) * MS, "u": rng.choice("abcdefghijk")}
            row |= {"id": number, "page": rng.choice(["/", "/a", None])}
            rows_by_source[rng.choice(CASES[case].sources)].append(row)
        batches.append(MicroBatch(rows_by_source))
    return batches


@dataclass(frozen=True)
class StoppedRun:
    """Undamaged state of a case, and the rows of the whole run. `last` is the last epoch that the target has."""

    home: Path
    last: int
    before: tuple[Mapping[str, Any], ...]
    whole: tuple[Mapping[str, Any], ...]


def _run_batches(case: str, home: Path, items: Sequence[Any], flush: bool, letters: Sequence[Any] = ()) -> LocalResult:
    example = CASES[case]
    return run_local_script(
        example.step,
        items,
        SCHEMA,
        example.sources,
        state_dir=str(home),
        flush=flush,
        downstream=example.then,
        letters=letters,
    )


def _received_rows(result: LocalResult) -> list[Mapping[str, Any]]:
    """Return all rows that the target received and all dead letters, ordered by epoch."""
    gone = [{**r, "is": "gone"} for r in result.gone]
    all_rows = [*({**r, "is": "row"} for r in result.rows), *gone, *({**r, "is": "letter"} for r in result.letters)]
    return sorted(all_rows, key=lambda r: r["_epoch"])


@functools.cache
def prepare_stopped_run(case: str, published: bool) -> StoppedRun:
    """Return the state of a case after some thirty epochs. Without `published`, its last epoch is not yet published."""
    if not published:
        return _unpublish_last_epoch(prepare_stopped_run(case, True))
    home = Path(tempfile.mkdtemp(prefix="slackwater-corrupted-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    items: list[Any] = draw_batches(case)[:STOPS]
    if CASES[case].replays:
        items.insert(STOPS // 2, DeadLetterReplay())
    before = _received_rows(_run_batches(case, home, items, flush=False))
    store = FilesStore(home, NAME)
    last = store.epochs()[-1]
    assert store.manifest(last).staged, "the last epoch of a case must have output, so that it can wait"
    stopped_run = StoppedRun(home, last, tuple(before), ())
    assert not verify_state(store).problems
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(home, copy, dirs_exist_ok=True)
        whole = continue_stopped_run(case, stopped_run, Path(copy))
    assert len(whole) > len(before) + 5
    return StoppedRun(home, last, tuple(before), tuple(whole))


def _unpublish_last_epoch(done: StoppedRun) -> StoppedRun:
    """Copy a stopped run to the state it had before its last epoch was published."""
    home = Path(tempfile.mkdtemp(prefix="slackwater-corrupted-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    shutil.copytree(done.home, home, dirs_exist_ok=True)
    before = tuple(r for r in done.before if r["_epoch"] < done.last)
    store = FilesStore(home, NAME)
    store.mark_published(max(r["_epoch"] for r in before))
    (home / NAME / "reached").unlink(missing_ok=True)  # the progress of each target is not recorded either
    assert not verify_state(store).problems
    return StoppedRun(home, done.last - 1, before, done.whole)


def continue_stopped_run(case: str, state: StoppedRun, home: Path) -> list[Mapping[str, Any]]:
    """Start again, read the rows that the state does not have, and return all rows that the target has at the end.

    The target ignores epochs that it already has, like every target that records its last epoch.
    """
    store = FilesStore(home, NAME)
    try:
        latest = store.open()
    finally:
        store.close()
    done = 0 if latest is None else count_batches(latest)
    rest = _received_rows(_run_batches(case, home, draw_batches(case)[done:], flush=True))
    return [*state.before, *(r for r in rest if r["_epoch"] > state.last)]


def count_batches(commit: Commit) -> int:
    """Return the number of script batches that a commit contains."""
    assert commit.batch is not None
    return commit.batch.batch + 1


# -- damage ------------------------------------------------------------------------------------------------------------


def _list_files(home: Path, *folders: str) -> list[Path]:
    return sorted(p for folder in folders for p in (home / NAME / folder).glob("*") if p.is_file())


def _pick_file(rng: random.Random, home: Path) -> Path:
    """Pick a file of the state. Each kind is equally likely, and later files are more likely."""
    kinds = [
        [home / NAME / "published"],
        *(_list_files(home, f) for f in ("manifests", "segments", "outputs", "offsets")),
    ]
    files = rng.choice([k for k in kinds if k])
    return files[-1 - int(len(files) * rng.random() ** 2)]


def flip_bits(rng: random.Random, home: Path) -> list[Path]:
    """Flip one to eight bits."""
    path = _pick_file(rng, home)
    content = bytearray(path.read_bytes())
    for bit in rng.sample(range(8 * len(content)), rng.choice([1, 1, 2, 8])):
        content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    return [path]


def overwrite_range(rng: random.Random, home: Path) -> list[Path]:
    """Overwrite a range with zeros or random bytes."""
    path = _pick_file(rng, home)
    content = bytearray(path.read_bytes())
    begin = rng.randrange(len(content))
    end = min(len(content), begin + rng.choice([1, 8, 64, 4096]))
    content[begin:end] = bytes(end - begin) if rng.random() < 0.7 else rng.randbytes(end - begin)
    path.write_bytes(content)
    return [path]


def truncate_file(rng: random.Random, home: Path) -> list[Path]:
    path = _pick_file(rng, home)
    size = path.stat().st_size
    os.truncate(path, rng.choice([0, max(size - 1, 0), rng.randrange(size)]))
    return [path]


def lengthen_file(rng: random.Random, home: Path) -> list[Path]:
    path = _pick_file(rng, home)
    path.write_bytes(path.read_bytes() + rng.choice([b"\0", b"9", b"\n", rng.randbytes(50)]))
    return [path]


def remove_file(rng: random.Random, home: Path) -> list[Path]:
    path = _pick_file(rng, home)
    path.unlink()
    return [path]


def remove_manifests(rng: random.Random, home: Path) -> list[Path]:
    """Remove the latest manifests, or all of them."""
    files = _list_files(home, "manifests")
    gone = files[-rng.choice([1, 2, 5, KEPT_EPOCHS * 3]) :]
    for path in gone:
        path.unlink()
    return gone


def swap_manifests(rng: random.Random, home: Path) -> list[Path]:
    return _swap_two_files(rng, _list_files(home, "manifests"))


def swap_segments(rng: random.Random, home: Path) -> list[Path]:
    return _swap_two_files(rng, _list_files(home, "segments"))


def swap_outputs(rng: random.Random, home: Path) -> list[Path]:
    return _swap_two_files(rng, _list_files(home, "outputs"))


def _swap_two_files(rng: random.Random, files: list[Path]) -> list[Path]:
    one, other = rng.sample(files[-6:] if rng.random() < 0.5 else files, 2)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    return [one, other]


def replace_with_old_file(rng: random.Random, home: Path) -> list[Path]:
    """Replace a new manifest or file of rows with the content of an old one."""
    files = _list_files(home, rng.choice(["manifests", "manifests", "segments", "outputs"]))
    new = files[-1 - int(3 * rng.random() ** 2)]
    new.write_bytes(rng.choice(files[: files.index(new)]).read_bytes())
    return [new]


def rename_manifest(rng: random.Random, home: Path) -> list[Path]:
    """Rename or copy a manifest to the name of an earlier or later epoch."""
    path = rng.choice(_list_files(home, "manifests"))
    to = path.with_name(f"{max(int(path.stem) + rng.choice([-12, -1, 1, 1, 2, 9]), 0):09d}.json")
    (path.rename if rng.random() < 0.5 else functools.partial(shutil.copy, path))(to)
    return [path, to]


def copy_foreign_manifest(rng: random.Random, home: Path) -> list[Path]:
    """Copy a recent manifest of another state to its own epoch, or over the latest manifest of this state."""
    other = rng.choice([c for c in CASES if not (home / NAME).samefile(prepare_stopped_run(c, True).home / NAME)])
    theirs = _list_files(prepare_stopped_run(other, True).home, "manifests")[-1 - int(4 * rng.random() ** 2)]
    replaced_file = home / NAME / "manifests" / theirs.name
    if rng.random() < 0.5:
        replaced_file = _list_files(home, "manifests")[-1]
    replaced_file.write_bytes(theirs.read_bytes())
    return [replaced_file]


def garble_published_marker(rng: random.Random, home: Path) -> list[Path]:
    path = home / NAME / "published"
    latest = int(_list_files(home, "manifests")[-1].stem)
    digest = path.read_text().split()[1]
    texts = [
        "",
        "garbled",
        f"{latest} {digest}",
        f"{latest + 1} {digest}",
        "99999",
        f"-1 {digest}",
        f"{latest - 1}",
        "²",
    ]
    path.write_text(rng.choice(texts))
    return [path]


Damage = Callable[[random.Random, Path], list[Path]]  # returns the damaged files
DAMAGES: tuple[Damage, ...] = (
    flip_bits,
    flip_bits,
    overwrite_range,
    truncate_file,
    lengthen_file,
    remove_file,
    remove_manifests,
    swap_manifests,
    swap_segments,
    swap_outputs,
    replace_with_old_file,
    rename_manifest,
    copy_foreign_manifest,
    garble_published_marker,
)


@dataclass(frozen=True)
class DamageOutcome:
    """Result of a damage: the report of `verify`, and the error of the restart (None if the rows are right)."""

    description: str
    report: VerifyReport
    refused: str | None


def check_random_damage(seed: int) -> DamageOutcome:
    """Check the damage of a seed."""
    rng = random.Random(seed)
    case, published = rng.choice(list(CASES)), rng.random() < 0.5
    return check_damage(case, published, rng.choice(DAMAGES), rng)


def check_damage(case: str, published: bool, damage: Damage, rng: random.Random) -> DamageOutcome:
    """Damage, verify and restart. Raise AssertionError for a wrong row or an error that does not name the file."""
    state = prepare_stopped_run(case, published)
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        shutil.copytree(state.home, home, dirs_exist_ok=True)
        paths = damage(rng, home)
        description = f"{case}, {'published' if published else 'not published'}: {damage.__name__} {', '.join(p.name for p in paths)}"
        names = {str(p) for p in paths}
        report = verify_state(FilesStore(home, NAME))
        problems_naming_files = [p for p in report.problems if any(n in str(p) for n in names)]
        assert bool(problems_naming_files) == bool(report.problems), (
            f"{description}: verify names other files: {[*map(str, report.problems)]}"
        )
        try:
            rows = continue_stopped_run(case, state, home)
        except SlackwaterError as error:
            assert any(n in str(error) for n in names), f"{description}: the file is not named: {error}"
            assert problems_naming_files, f"{description}: verify finds nothing, and a start does: {error}"
            return DamageOutcome(description, report, str(error))
        wrong = [r for r in rows if r not in state.whole][:3]
        assert rows == list(state.whole), (
            f"{description}: {len(rows)} rows, expected {len(state.whole)}; wrong: {wrong}"
        )
        return DamageOutcome(description, report, None)


def check_damage_seed(seed: int) -> tuple[int, int, int]:
    """Check a seed. Return (reported by verify, refused at the start, harmless and unreported). Name a failing seed."""
    seed_runner.hide_warnings()
    try:
        outcome = check_random_damage(seed)
    except BaseException as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    return bool(outcome.report.problems), outcome.refused is not None, not (outcome.report.problems or outcome.refused)


if __name__ == "__main__":
    seed_runner.run_seeds(
        check_damage_seed, __doc__ or "", ("told by verify", "refused at the start", "harmless and not told"), 1000
    )
