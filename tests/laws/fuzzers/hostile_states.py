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

from tests.fixtures.states import write_states
from tests.laws.fuzzers import hostile_texts as words
from tests.laws.fuzzers import state_corruption
from tests.support.script import run_local

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
from slackwater.testing.pipeline_builder import build_pipeline

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
class Base:
    """The undamaged state of one pipeline. `go_on` starts the pipeline and feeds it the remaining rows."""

    home: Path
    pipeline: Pipeline
    go_on: Callable[[Callable[[], StateStore]], object]


@functools.cache
def bases() -> dict[str, Base]:
    """Return states of each kind: in the current format, cut to the last two epochs, and in all fixture formats."""
    bases_by_name = dict[str, Base]()
    for name, case in state_corruption.CASES.items():
        pipeline = build_pipeline(case.step, case.sources, downstream=case.then)
        bases_by_name[name] = Base(short(name), pipeline, functools.partial(_continue_today, name))
    for number in range(1, FORMAT + 1):
        for name, kind in write_states.KINDS.items():
            pipeline = build_pipeline(kind.step, kind.sources, downstream=kind.then)
            home = write_states.HERE / f"format-{number}" / "files" / name
            bases_by_name[f"format {number}, {name}"] = Base(home, pipeline, functools.partial(_continue_fixture, name))
    return bases_by_name


def _continue_today(name: str, store: Callable[[], StateStore]) -> None:
    case = state_corruption.CASES[name]
    run_local(
        case.step,
        state_corruption.script(name)[state_corruption.STOPS :],
        state_corruption.SCHEMA,
        case.sources,
        store=store,
        downstream=case.then,
    )


def _continue_fixture(name: str, store: Callable[[], StateStore]) -> None:
    kind = write_states.KINDS[name]
    write_states.run(kind, store, kind.story[kind.half :], kind.clock_us, flush=True)


@functools.cache
def short(name: str) -> Path:
    """Return the undamaged state of a case with only its last two epochs, so that thousands of cases read it fast."""
    home = Path(tempfile.mkdtemp(prefix="slackwater-hostile-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    shutil.copytree(state_corruption.stop_midway(name, True).home, home, dirs_exist_ok=True)
    for path in sorted((home / state_corruption.NAME / "manifests").glob("*.json"))[:-2]:
        path.unlink()
    store = FilesStore(home, state_corruption.NAME)
    store.open()
    store.collect_garbage()
    store.close()
    assert not verify_state(store).problems
    return home


@functools.cache
def sound(name: str) -> dict[str, Any]:
    """Return the last record of a state."""
    record = json.loads(last_manifest(bases()[name].home).read_text().splitlines()[0])
    assert isinstance(record, dict)
    return record


def last_manifest(home: Path) -> Path:
    return sorted((home / state_corruption.NAME / "manifests").glob("*.json"))[-1]


# -- false values ------------------------------------------------------------------------------------------------------


def nodes(record: Any, path: NodePath = ()) -> Iterator[NodePath]:
    """Yield the paths of all values in a record."""
    if path:
        yield path
    items = record.items() if isinstance(record, dict) else enumerate(record) if isinstance(record, list) else ()
    for key, value in items:
        yield from nodes(value, (*path, key))


def value_at(record: Any, path: NodePath) -> Any:
    return functools.reduce(lambda node, key: node[key], path, record)


def with_value(record: Any, path: NodePath, value: Any) -> Any:
    """Return a copy of a record with another value at a path, or without the path if `value` is MISSING."""
    changed = copy.deepcopy(record)
    holder = value_at(changed, path[:-1])
    if value is MISSING:
        del holder[path[-1]]
    else:
        holder[path[-1]] = copy.deepcopy(value)
    return changed


def with_lie(rng: random.Random, record: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Change one value of a record, at every depth equally often. Return a description of the change and the record."""
    depth, path, node = rng.randrange(1, 10), NodePath(), cast("Any", record)
    while isinstance(node, dict | list) and node and len(path) < depth:
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        path, node = (*path, key), node[key]
    change = rng.random()
    if change < 0.15:
        return f"{path} removed", with_value(record, path, MISSING)
    if change < 0.25 and isinstance(node, list):
        longer = [*node, rng.choice([*node, *LIES])] if rng.random() < 0.5 else node[:-1]
        return f"{path} of {len(longer)}", with_value(record, path, longer)
    if change < 0.3 and isinstance(node, dict):
        return f"{path} with one more", with_value(record, path, {**node, words.text(rng)[:50]: rng.choice(LIES)})
    if change < 0.4 and isinstance(node, int) and not isinstance(node, bool):
        lie = node + rng.choice([-1, 1, 1000, -(10**9), 10**15])
    elif change < 0.45:  # a value from elsewhere in the record
        lie = value_at(record, rng.choice(list(nodes(record))))
    else:
        alike = [v for v in LIES if type(v) is type(node)] if rng.random() < 0.4 else []
        lie = rng.choice(alike or LIES)
    return f"{path} = {lie!r:.60}", with_value(record, path, lie)


def write(home: Path, record: Any) -> None:
    """Replace the last record, and write its checksum."""
    text = json.dumps(record)
    last_manifest(home).write_text(f"{text}\n{file_checksum(text.encode())}\n")


# -- queries -----------------------------------------------------------------------------------------------------------


def case(rng: random.Random) -> str:
    if rng.random() < 0.1:  # damage bytes instead, and run the whole pipeline afterwards
        outcome = state_corruption.check(rng.randrange(10**9))
        return "refused" if outcome.refused else "harmless"
    name = rng.choice(list(bases()))
    record = sound(name)
    done = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        lie, record = with_lie(rng, record)
        done.append(lie)
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        shutil.copytree(bases()[name].home, home, dirs_exist_ok=True)
        write(home, record)
        return ask_everything(
            f"{name}: {'; '.join(done)}", bases()[name], lambda: FilesStore(home, state_corruption.NAME), rng
        )


def ask_everything(description: str, base: Base, store: Callable[[], StateStore], rng: random.Random) -> str:
    """Run every query on a state. Return `refused` if one was refused. Raise AssertionError for any other error."""
    outcome = "accepted"
    questions = (_verify, _scan, _open, _plan, _why, _show, _describe, _weigh)
    for question in questions:
        outcome = _answer(f"{description}: {question.__name__}", lambda: question(base.pipeline, store), outcome)  # noqa: B023
    if outcome == "accepted" or rng.random() < 0.3:  # a start must not raise a foreign error either
        outcome = _answer(f"{description}: start", lambda: base.go_on(store), outcome)
    return outcome


def _answer(description: str, question: Callable[[], object], outcome: str) -> str:
    try:
        question()
    except SlackwaterError as error:
        words.one_line(error)
        assert len(str(error).splitlines()) == len(getattr(error, "problems", [0])), f"{description}: {error}"
        return "refused"
    except BaseException as error:
        raise AssertionError(f"{description}: {type(error).__name__}: {error}") from error
    return outcome


def _verify(pipeline: Pipeline, store: Callable[[], StateStore]) -> None:
    verify_state(store())


def _scan(pipeline: Pipeline, store: Callable[[], StateStore]) -> None:
    with StateView(store()) as view:
        view.scan(limit=5).to_dicts()


def _open(pipeline: Pipeline, store: Callable[[], StateStore]) -> None:
    with contextlib.closing(store()) as opened:
        opened.open()


def _plan(pipeline: Pipeline, store: Callable[[], StateStore]) -> None:
    with store().peek() as snapshot:
        assert snapshot is not None
        comparison = config_state_comparison.compare_config(pipeline, snapshot.commit, missing=snapshot.missing)
        json.dumps([change.line for change in comparison.changes])


def _why(pipeline: Pipeline, store: Callable[[], StateStore]) -> None:
    build_why_report(pipeline, store(), NOW_US)


def _show(pipeline: Pipeline, store: Callable[[], StateStore]) -> None:
    """Run `state show` and `state ls` if the store is in files."""
    opened = store()
    if isinstance(opened, FilesStore):
        where = str(Path(opened.root).parent)
        for as_json in (False, True):
            with contextlib.redirect_stdout(io.StringIO()):
                state_show.list_states(where, "public", as_json)
                state_show.show_state(StateLocation(where, state_corruption.NAME), None, as_json)


def _describe(pipeline: Pipeline, store: Callable[[], StateStore]) -> None:
    with store().peek() as snapshot:
        assert snapshot is not None
        rebuild_pipeline(snapshot.commit)


def _weigh(pipeline: Pipeline, store: Callable[[], StateStore]) -> None:
    measure_state_sizes(store(), 3)
    list_commits(store())
