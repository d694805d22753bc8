"""Damaged states, and false records with a valid checksum: Slackwater works, or refuses them with its own error.

A case takes the state of one kind of pipeline, in this format or an earlier one. It changes one or two nodes of the
last record (another type, missing, longer, huge, negative, NaN, nested), and runs every user query on the state.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import functools
import io
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tests.fixtures.states import write_state_fixtures
from tests.laws.fuzzers import fuzz_state_files
from tests.laws.fuzzers import hostile_texts as words
from tests.support.local_pipeline_script import run_local_script

from slackwater.cli import state_show
from slackwater.cli.state_location import StateLocation
from slackwater.config.pipeline import Pipeline
from slackwater.errors import SlackwaterError
from slackwater.evolution import config_state_comparison
from slackwater.evolution.pipeline_from_state import rebuild_pipeline
from slackwater.maintenance import verify_state
from slackwater.maintenance.history import list_commits
from slackwater.maintenance.state_sizes import measure_state_sizes
from slackwater.query.state_view import StateView
from slackwater.query.why_report_builder import build_why_report
from slackwater.state.commit import FORMAT
from slackwater.state.files.store import FilesStore
from slackwater.state.protocol import StateStore
from slackwater.storage.arrow_files import file_checksum
from slackwater.testing.pipeline_setup import build_pipeline

NESTED: Any = json.loads("[" * 60 + "]" * 60)
LIES: tuple[Any, ...] = (
    *words.NUMBERS[:10],
    float("nan"),
    float("-inf"),
    1e308,
    1.5,
    True,
    None,
    "",
    "x",
    "5",
    "\ud800",
    "../../../etc/passwd",
    "/etc/passwd",
    "x" * 5000,
    [],
    [[]],
    [1, 2, 3],
    {},
    {"a": 1},
    {"kind": "join"},
    NESTED,
)
MISSING = object()
NOW_US = 4_000_000_100_000_000
NodePath = tuple[str | int, ...]  # the path of a node in a record


@dataclass(frozen=True)
class UndamagedState:
    """The undamaged state of one pipeline. `go_on` starts the pipeline and feeds it the remaining rows."""

    home: Path
    pipeline: Pipeline
    go_on: Callable[[Callable[[], StateStore]], object]


@functools.cache
def undamaged_states() -> dict[str, UndamagedState]:
    """Return states of each kind: in the current format, cut to the last two epochs, and in all fixture formats."""
    bases_by_name = dict[str, UndamagedState]()
    for name, case in fuzz_state_files.CASES.items():
        pipeline = build_pipeline(case.step, case.sources, downstream=case.then)
        bases_by_name[name] = UndamagedState(
            prepare_two_epoch_state(name), pipeline, functools.partial(_continue_current_format, name)
        )
    for number in range(1, FORMAT + 1):
        for name, kind in write_state_fixtures.KINDS.items():
            pipeline = build_pipeline(kind.step, kind.sources, downstream=kind.then)
            home = write_state_fixtures.HERE / f"format-{number}" / "files" / name
            bases_by_name[f"format {number}, {name}"] = UndamagedState(
                home, pipeline, functools.partial(_continue_fixture, name)
            )
    return bases_by_name


def _continue_current_format(name: str, store: Callable[[], StateStore]) -> None:
    case = fuzz_state_files.CASES[name]
    run_local_script(
        case.step,
        fuzz_state_files.draw_batches(name)[fuzz_state_files.STOPS :],
        fuzz_state_files.SCHEMA,
        case.sources,
        store=store,
        downstream=case.then,
    )


def _continue_fixture(name: str, store: Callable[[], StateStore]) -> None:
    kind = write_state_fixtures.KINDS[name]
    write_state_fixtures.run_script_part(kind, store, kind.story[kind.half :], kind.clock_us, flush=True)


@functools.cache
def prepare_two_epoch_state(name: str) -> Path:
    """Return the undamaged state of a case with only its last two epochs, so that thousands of cases read it fast."""
    home = Path(tempfile.mkdtemp(prefix="slackwater-hostile-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    shutil.copytree(fuzz_state_files.prepare_stopped_run(name, True).home, home, dirs_exist_ok=True)
    for path in sorted((home / fuzz_state_files.NAME / "manifests").glob("*.json"))[:-2]:
        path.unlink()
    store = FilesStore(home, fuzz_state_files.NAME)
    store.open()
    store.collect_garbage()
    store.close()
    assert not verify_state(store).problems
    return home


@functools.cache
def read_last_record(name: str) -> dict[str, Any]:
    """Return the last record of a state."""
    record = json.loads(last_manifest_path(undamaged_states()[name].home).read_text().splitlines()[0])
    assert isinstance(record, dict)
    return record


def last_manifest_path(home: Path) -> Path:
    return sorted((home / fuzz_state_files.NAME / "manifests").glob("*.json"))[-1]


# -- false values ------------------------------------------------------------------------------------------------------


def node_paths(record: Any, path: NodePath = ()) -> Iterator[NodePath]:
    """Yield the paths of all values in a record."""
    if path:
        yield path
    items = record.items() if isinstance(record, dict) else enumerate(record) if isinstance(record, list) else ()
    for key, value in items:
        yield from node_paths(value, (*path, key))


def node_value(record: Any, path: NodePath) -> Any:
    return functools.reduce(lambda node, key: node[key], path, record)


def replace_value(record: Any, path: NodePath, value: Any) -> Any:
    """Return a copy of a record with another value at a path, or without the path if `value` is MISSING."""
    changed = copy.deepcopy(record)
    holder = node_value(changed, path[:-1])
    if value is MISSING:
        del holder[path[-1]]
    else:
        holder[path[-1]] = copy.deepcopy(value)
    return changed


def falsify_record(rng: random.Random, record: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Change one value of a record, at every depth equally often. Return a description of the change and the record."""
    depth, path, node = rng.randrange(1, 10), NodePath(), cast("Any", record)
    while isinstance(node, dict | list) and node and len(path) < depth:
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        path, node = (*path, key), node[key]
    change = rng.random()
    if change < 0.15:
        return f"{path} removed", replace_value(record, path, MISSING)
    if change < 0.25 and isinstance(node, list):
        longer = [*node, rng.choice([*node, *LIES])] if rng.random() < 0.5 else node[:-1]
        return f"{path} of {len(longer)}", replace_value(record, path, longer)
    if change < 0.3 and isinstance(node, dict):
        return f"{path} with one more", replace_value(
            record, path, {**node, words.draw_text(rng)[:50]: rng.choice(LIES)}
        )
    if change < 0.4 and isinstance(node, int) and not isinstance(node, bool):
        lie = node + rng.choice([-1, 1, 1000, -(10**9), 10**15])
    elif change < 0.45:  # a value from elsewhere in the record
        lie = node_value(record, rng.choice(list(node_paths(record))))
    else:
        alike = [v for v in LIES if type(v) is type(node)] if rng.random() < 0.4 else []
        lie = rng.choice(alike or LIES)
    return f"{path} = {lie!r:.60}", replace_value(record, path, lie)


def write_last_record(home: Path, record: Any) -> None:
    """Replace the last record, and write its checksum."""
    text = json.dumps(record)
    last_manifest_path(home).write_text(f"{text}\n{file_checksum(text.encode())}\n")


# -- queries -----------------------------------------------------------------------------------------------------------


def check_random_damaged_state(rng: random.Random) -> str:
    if rng.random() < 0.1:  # damage bytes instead, and run the whole pipeline afterwards
        outcome = fuzz_state_files.check_random_damage(rng.randrange(10**9))
        return "refused" if outcome.refused else "harmless"
    name = rng.choice(list(undamaged_states()))
    record = read_last_record(name)
    done = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        lie, record = falsify_record(rng, record)
        done.append(lie)
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        shutil.copytree(undamaged_states()[name].home, home, dirs_exist_ok=True)
        write_last_record(home, record)
        return run_all_queries(
            f"{name}: {'; '.join(done)}", undamaged_states()[name], lambda: FilesStore(home, fuzz_state_files.NAME), rng
        )


def run_all_queries(description: str, base: UndamagedState, store: Callable[[], StateStore], rng: random.Random) -> str:
    """Run every query on a state. Return `refused` if one was refused. Raise AssertionError for any other error."""
    outcome = "accepted"
    questions = (
        _verify_state,
        _scan_state,
        _open_store,
        _compare_config,
        _build_why_report,
        _show_and_list_states,
        _rebuild_pipeline,
        _measure_sizes,
    )
    for question in questions:
        outcome = _run_query(f"{description}: {question.__name__}", lambda: question(base.pipeline, store), outcome)  # noqa: B023
    if outcome == "accepted" or rng.random() < 0.3:  # a start must not raise a foreign error either
        outcome = _run_query(f"{description}: start", lambda: base.go_on(store), outcome)
    return outcome


def _run_query(description: str, question: Callable[[], object], outcome: str) -> str:
    try:
        question()
    except SlackwaterError as error:
        words.assert_slackwater_error(error)
        assert len(str(error).splitlines()) == len(getattr(error, "problems", [0])), f"{description}: {error}"
        return "refused"
    except BaseException as error:
        raise AssertionError(f"{description}: {type(error).__name__}: {error}") from error
    return outcome


def _verify_state(pipeline: Pipeline, store: Callable[[], StateStore]) -> None:
    verify_state(store())


def _scan_state(pipeline: Pipeline, store: Callable[[], StateStore]) -> None:
    with StateView(store()) as view:
        view.scan(limit=5).to_dicts()


def _open_store(pipeline: Pipeline, store: Callable[[], StateStore]) -> None:
    with contextlib.closing(store()) as opened:
        opened.open()


def _compare_config(pipeline: Pipeline, store: Callable[[], StateStore]) -> None:
    with store().peek() as snapshot:
        assert snapshot is not None
        comparison = config_state_comparison.compare_config(pipeline, snapshot.commit, missing=snapshot.missing)
        json.dumps([change.line for change in comparison.changes])


def _build_why_report(pipeline: Pipeline, store: Callable[[], StateStore]) -> None:
    build_why_report(pipeline, store(), NOW_US)


def _show_and_list_states(pipeline: Pipeline, store: Callable[[], StateStore]) -> None:
    """Run `state show` and `state ls` if the store is in files."""
    opened = store()
    if isinstance(opened, FilesStore):
        where = str(Path(opened.root).parent)
        for as_json in (False, True):
            with contextlib.redirect_stdout(io.StringIO()):
                state_show.list_states(where, "public", as_json)
                state_show.show_state(StateLocation(where, fuzz_state_files.NAME), None, as_json)


def _rebuild_pipeline(pipeline: Pipeline, store: Callable[[], StateStore]) -> None:
    with store().peek() as snapshot:
        assert snapshot is not None
        rebuild_pipeline(snapshot.commit)


def _measure_sizes(pipeline: Pipeline, store: Callable[[], StateStore]) -> None:
    measure_state_sizes(store(), 3)
    list_commits(store())
