"""Operators are frozen, picklable, and registered in every package that dispatches on their class."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, dataclass
from functools import singledispatchmethod
from inspect import signature
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from pyspark import cloudpickle
from tests.support.every_nth_row_operator import EveryNthRowOperator
from tests.support.keyed_functions import Reminders
from tests.support.local_pipeline_script import build_pipeline

import slackwater
import slackwater as sw
from slackwater.config.connection import Connection
from slackwater.config.stage import Transform
from slackwater.config.step_base import ROWS
from slackwater.core.schema import Field
from slackwater.errors import LimitExceededError
from slackwater.joins.compiled_join import CompiledJoin
from slackwater.operators.base import NonWindowOperator, Operator, ShardTask
from slackwater.operators.dedup import DedupOperator
from slackwater.operators.interval_join import IntervalJoinOperator
from slackwater.operators.keyed_operator_base import KeyedOperator
from slackwater.operators.registry import (
    OPERATOR_TYPES,
    compile_join,
    compile_stateless,
    compile_step,
    compile_window,
    find_type_by_kind,
)
from slackwater.operators.reports import EmitReport, IngestReport, SideReport, StageCounts
from slackwater.operators.stateless import StatelessOperator
from slackwater.operators.timer_state_layout import NO_TIMER
from slackwater.operators.user_keyed_operator import UserKeyedOperator
from slackwater.operators.window_operators import PaneWindowOperator, SessionWindowOperator
from slackwater.spark.worker_tasks import PackedTasks
from slackwater.state.commit import SegmentMetadata, StageState
from slackwater.state.protocol import NoState
from slackwater.windows.compiled_window import CompiledWindow

FIELDS = {"u": Field("u", "string")}
COUNT = [sw.Aggregation(agg="count", as_="n")]


def window_operator(kind: str, **more: Any) -> Any:
    shape: dict[str, Any] = {"duration_ms": 10}
    if kind == "session":
        shape = {"gap_ms": 5, "max_session_duration_ms": 100}
    if kind == "hopping":
        shape |= {"hop_ms": 5}
    settings = {"group_by": ["u"], "aggregations": COUNT, "max_groups_per_window": 3, **shape, **more}
    return compile_window(build_pipeline(sw.Window(kind=kind, **settings), ["a"]), FIELDS)


def join_operator() -> IntervalJoinOperator:
    spec = sw.Join(
        kind="left", left_source="a", right_source="b", left_keys=["u"], right_keys=["u"], time_window_ms=10
    )  # fmt: skip
    return compile_join(build_pipeline(spec, ["a", "b"]), (FIELDS, FIELDS))


def dedup_operator(keep: str = "first") -> DedupOperator:
    step = sw.Dedup(keys=["u"], keep=keep, within="10s")
    operator = compile_step(build_pipeline(step, ["a"]), {"a": FIELDS | {"v": Field("v", "bigint")}})
    assert isinstance(operator, DedupOperator)
    return operator


def keyed_operator() -> UserKeyedOperator:
    step = sw.Keyed(class_=Reminders, keys=["user"], options={"every": 5})
    operator = compile_step(build_pipeline(step, ["a"]), {"a": {"user": Field("user", "string")}})
    assert isinstance(operator, UserKeyedOperator)
    return operator


def stateless_operator() -> StatelessOperator:
    described = sw.Pipeline(
        name="p",
        sources=[sw.Source(name="a", dataframe=object())],
        transform=sw.Transform(sql="SELECT u FROM source"),
        target=sw.Target(connection=sw.ConsoleConnection()),
    )
    return compile_stateless(described, list(FIELDS.values()))


EVERY: dict[str, tuple[Callable[[], Operator], type]] = {
    "tumbling": (lambda: window_operator("tumbling"), PaneWindowOperator),
    "hopping": (lambda: window_operator("hopping"), PaneWindowOperator),
    "session": (lambda: window_operator("session"), SessionWindowOperator),
    "join": (join_operator, IntervalJoinOperator),
    "rows": (stateless_operator, StatelessOperator),
    "dedup": (dedup_operator, DedupOperator),
    "keyed": (keyed_operator, UserKeyedOperator),
}


@pytest.mark.parametrize("kind", EVERY)
def test_operator_is_frozen_and_picklable(kind: str) -> None:
    make, cls = EVERY[kind]
    operator = make()
    assert type(operator) is cls
    with pytest.raises(FrozenInstanceError):
        operator.pipeline = "another"  # type: ignore[misc]
    _ = operator.output  # cached attributes are pickled or computed again
    sent = pickle.loads(pickle.dumps(operator))
    assert sent == operator
    assert [f.name for f in sent.output] == [f.name for f in operator.output]
    task = ShardTask(operator, None, 0, watermark=1, since=0)  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(task)).operator == operator


_OPENED = list[int]()


def _unpickle_shard(shard: int) -> UnpickleRecordingShard:
    _OPENED.append(shard)
    return UnpickleRecordingShard(shard)


@dataclass(frozen=True)
class UnpickleRecordingShard:
    """State of a shard that records when it is unpickled."""

    shard: int

    def __reduce__(self) -> Any:
        return _unpickle_shard, (self.shard,)


def test_worker_unpickles_only_the_task_of_its_shard() -> None:
    """Every worker receives the tasks of all shards. Unpickling all of them would make an epoch quadratic."""
    operator = window_operator("session")
    tasks = [ShardTask(operator, UnpickleRecordingShard(n), n, watermark=1, since=0, groups=n) for n in range(3)]  # type: ignore[arg-type]
    sent = pickle.loads(cloudpickle.dumps(PackedTasks.pack(tasks)))  # type: ignore[no-untyped-call]
    assert _OPENED == []
    assert sent.task(1) == tasks[1]
    assert _OPENED == [1]


def test_operators_define_identity_and_retraction_columns() -> None:
    assert (window_operator("tumbling").identity, window_operator("tumbling").retraction) == (
        ("u", "window_start"),
    ) * 2
    assert window_operator("session").retraction == ("u", "window_start", "session_id")
    assert (join_operator().identity, join_operator().retraction) == (None, ())
    assert (stateless_operator().identity, stateless_operator().retraction) == (None, ())


# -- counts and segments in the commit ---------------------------------------------------------------------------------


def test_pane_operator_counts_groups_of_panes_that_a_window_needs() -> None:
    operator, none = window_operator("hopping"), StageCounts((0, 0), (0, 0))
    reports = [
        IngestReport(shard=0, segments=(), new_groups={0: 2}),
        IngestReport(shard=1, segments=(), new_groups={0: 1, 5000: 4}),
    ]
    after = operator.counts_after_ingest(none, reports)
    assert (after.panes, operator.count_open_groups(after)) == ({0: (2, 1), 5000: (0, 4)}, (7, 7))
    assert none.panes == {}, "figures are values"
    assert operator.counts_after_emit(after, [], 10_000).panes == {5000: (0, 4)}


def test_session_operator_counts_keys_and_intervals_per_shard() -> None:
    operator = window_operator("session")
    after = operator.counts_after_ingest(
        StageCounts((1, 0), (1, 0)), [IngestReport(shard=1, segments=(), groups=2, windows=3)]
    )
    assert (after.groups, after.windows, operator.count_open_groups(after)) == ((1, 2), (1, 3), (4, 3))
    after = operator.counts_after_emit(after, [EmitReport(shard=0, segments=(), groups=-1, windows=-1)], 0)
    assert (after.groups, after.windows) == ((0, 2), (0, 3))


def test_join_counts_buffered_late_and_unmatched_rows_by_side() -> None:
    operator = join_operator()
    sides = (SideReport(buffered=2, late=1), SideReport(buffered=1))
    after = operator.counts_after_ingest(StageCounts((0,), (0,)), [IngestReport(shard=0, segments=(), sides=sides)])
    after = operator.counts_after_emit(after, [EmitReport(shard=0, segments=(), unmatched=(2, 0))], 0)
    assert {side: (n["buffered"], n["late"], n["unmatched"]) for side, n in after.sides.items()} == {
        "left": (2, 1, 2),
        "right": (1, 0, 0),
    }
    assert operator.count_open_groups(after) == (0, 0)


def segment_metadata(name: str, dead: int) -> SegmentMetadata:
    return SegmentMetadata(file=name, rows=1, bytes=1, first_due=0, last_due=0, close=0, dead=dead)


@pytest.mark.parametrize("kind", EVERY)
def test_expired_segments_are_removed_without_uncovering_older_rows(kind: str) -> None:
    metas = (
        segment_metadata("segments/a", 1),
        segment_metadata("segments/b", 9),
        segment_metadata("segments/c", 1),
        segment_metadata("", 1),
    )
    live = EVERY[kind][0]().live_segments(metas, 5)
    files = [m.file for m in live]
    expected = {"join": ["segments/b", ""], "rows": []}
    assert files == expected.get(kind, ["segments/b", "segments/c", ""])


def test_group_limit_is_checked_by_an_exact_count_if_windows_overlap() -> None:
    operator, counted = window_operator("hopping"), list[object]()
    figures = StageCounts((0,), (0,), {0: (2,), 5000: (2,)})  # four groups at 0, unless the panes share keys

    def recount(question: Any) -> dict[int, int]:
        counted.append(pickle.loads(pickle.dumps(question)))
        return {0: 3}

    operator.check_group_limit(figures, -(1 << 62), recount)
    assert len(counted) == 1
    with pytest.raises(LimitExceededError, match=r"has 4 groups, but max_groups_per_window is 3"):
        operator.check_group_limit(figures, -(1 << 62), lambda question: {0: 4})
    with pytest.raises(LimitExceededError, match=r"4 keys have open sessions, but max_groups_per_window is 3"):
        window_operator("session").check_group_limit(StageCounts((2, 2), (2, 2)), 0, recount)
    window_operator("session", on_state_cap="drop_new_groups").check_group_limit(
        StageCounts((2, 2), (2, 2)), 0, recount
    )
    assert window_operator("session", on_state_cap="drop_new_groups").group_limit == 3
    assert (window_operator("session").group_limit, join_operator().group_limit) == (None, None)
    assert len(counted) == 1, "sessions are counted by the commit"


# -- dispatch in the packages ------------------------------------------------------------------------------------------


def find_dispatch_functions() -> Iterator[tuple[str, Any]]:
    """Yield every function that dispatches on the class of an operator, of stage logic or of a connection."""
    for module_info in pkgutil.walk_packages(slackwater.__path__, "slackwater."):
        module = importlib.import_module(module_info.name)
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) != module_info.name:
                continue
            if hasattr(value, "registry") and f"{module_info.name}.{name}" not in PRINTED:
                yield f"{module_info.name}.{name}", value
            for inner, method in vars(value).items() if isinstance(value, type) else ():
                if isinstance(method, singledispatchmethod):
                    yield f"{module_info.name}.{name}.{inner}", method.dispatcher


PRINTED = (
    "slackwater.ui.notebook._render",
    "slackwater.cli.api_value_format.format_api_value",
)  # both dispatch on the class of a value that Python code returns


def dispatches_on_connections(question: Any) -> bool:
    return any(issubclass(cls, Connection) for cls in question.registry)


class UnregisteredOperator:
    """An operator or connection that is not registered anywhere."""

    pipeline = "p"


def test_every_package_handles_every_operator_or_refuses_it_by_name() -> None:
    """A function handles all operators, only stateful ones, only windows or only joins, and refuses other classes."""
    answers: dict[str, set[str]] = {}
    for name, question in find_dispatch_functions():
        if dispatches_on_connections(question):
            continue
        bare = question.dispatch(object)
        every = [cls for one in OPERATOR_TYPES for cls in one.operators if not issubclass(cls, KeyedOperator)]
        answered = {cls.__name__ for cls in every if question.dispatch(cls) is not bare}
        answers[name] = answered
        windows, stateful = (
            {"PaneWindowOperator", "SessionWindowOperator"},
            {"PaneWindowOperator", "SessionWindowOperator", "IntervalJoinOperator"},
        )
        assert answered in ({cls.__name__ for cls in every}, stateful, windows, {"IntervalJoinOperator"}), name
        assert question.dispatch(UnregisteredOperator) is bare, name
    assert len(answers) > 30
    for package in (
        "evolution",
        "maintenance",
        "query",
        "dead_letters",
        "spark",
        "state",
        "testing",
        "ui",
        "windows",
    ):
        assert any(name.startswith(f"slackwater.{package}.") for name in answers), package


def test_a_new_operator_inherits_the_defaults_of_non_window_operators() -> None:
    """Functions without a safe default refuse the operator by name, so that rows are not lost."""

    class New(NonWindowOperator):
        pass

    answered = {
        name.removeprefix("slackwater.")
        for name, q in find_dispatch_functions()
        if q.dispatch(New) is not q.dispatch(object)
    }
    assert answered == {
        "evolution.state_migration.operator_for_state",
        "operators.unstorable_rows.storable_event_times",
        "spark.operator_input.worker_aggregations",
        "spark.operator_input.lift_rows",
        "spark.operator_input.disable_preaggregation",
        "spark.operator_input.to_ingest_rows",
        "testing.local_engine.cast_to_declared",
        "ui.blocks.upcoming_closes._closing_times",
        "ui.blocks.upcoming_closes._closing_keys",
    }
    New.__abstractmethods__ = frozenset()
    new = New()  # type: ignore[abstract]
    defaults = (new.updates, new.identity, new.group_limit, new.count_open_groups(StageCounts((), ())))
    assert defaults == (False, None, None, (0, 0))


def test_keyed_operator_is_handled_wherever_all_other_operators_are() -> None:
    """A new keyed operator needs no registration. Only functions about late rows, windows or sides do not handle it."""
    every = [cls for one in OPERATOR_TYPES for cls in one.operators]
    for name, question in find_dispatch_functions():
        bare = question.dispatch(object)
        if not dispatches_on_connections(question) and all(question.dispatch(cls) is not bare for cls in every):
            assert question.dispatch(EveryNthRowOperator) is not bare, name


def test_stateless_operator_never_has_late_or_due_rows() -> None:
    none, immediate = StageCounts((2, 3), (0, 0)), stateless_operator()
    task = ShardTask(immediate, SimpleNamespace(metas=()), 0, watermark=9, since=0)  # type: ignore[arg-type]
    assert not immediate.may_be_due((), 0, 1 << 60, True)
    assert not immediate.is_due(task)
    assert immediate.emit(task) == EmitReport(shard=0, segments=())
    assert immediate.late_threshold(1 << 60) < -(1 << 60)
    assert immediate.counts_after_emit(none, [], 5) == none
    assert (immediate.state_text(none), immediate.count_open_groups(none)) == ("no state", (0, 0))


def test_keyed_operator_without_timers_is_never_due_and_accepts_late_rows() -> None:
    operator = EveryNthRowOperator("p", tuple(FIELDS.values()), tuple(FIELDS.values()), 2)
    counts = StageCounts((2, 3), (2, 3))
    assert (operator.state_text(counts), operator.count_open_groups(counts)) == ("5 keys kept", (0, 5))
    assert operator.late_threshold(1 << 60) < -(1 << 60)
    untimed = pl.DataFrame({"__kind": [0], "__due": [NO_TIMER]}, schema_overrides={"__kind": pl.Int8})
    stats = operator.stats(untimed)
    segment = SegmentMetadata(file="segments/a", rows=1, bytes=1, **stats._asdict())
    assert not operator.may_be_due((segment,), -(1 << 62), 1 << 61, early=True)
    assert stats.dead > 1 << 61, "a row without a timer stays"


def test_timer_is_due_in_exactly_one_advance_of_the_watermark() -> None:
    """timers 5 and 9

    watermark    0 ─── 4 ─── 5 ─── 9 ─── 1 << 61
    due             no    5     9     nothing more
    """
    operator = dedup_operator("last")
    rows_of_state = pl.DataFrame({"__kind": [0, 0], "__due": [5, 9]}, schema_overrides={"__kind": pl.Int8})
    stats = operator.stats(rows_of_state)
    assert stats == (5, 9, 9, 9)
    segment = SegmentMetadata(file="segments/a", rows=2, bytes=1, **stats._asdict())
    steps = [(0, 4), (4, 5), (5, 9), (9, 1 << 61)]
    assert [operator.may_be_due((segment,), *step, early=False) for step in steps] == [False, True, True, False]
    assert (operator.watermark_hold_us(50_000_000, ()), dedup_operator("first").watermark_hold_us(50_000_000, ())) == (
        40_000_000,
        50_000_000,
    )
    assert operator.watermark_hold_us(-(1 << 62), ()) == -(1 << 62)


@pytest.mark.parametrize("kind", EVERY)
def test_an_operator_is_rebuilt_from_its_state(kind: str) -> None:
    operator = EVERY[kind][0]()
    operator_type = find_type_by_kind(operator.fingerprint["kind"])
    assert operator_type is not None
    assert type(operator) in operator_type.operators
    if operator_type.from_state is None:
        return
    description = {
        "fingerprint": operator.fingerprint,
        "emission": operator.emission,
        "described": operator.description({}),
    }
    state = StageState.model_validate_json(
        StageState(name="s", segments=(), groups=(), windows=(), **description).model_dump_json()
    )
    again = operator_type.from_state("p", state)
    assert (again.fingerprint, again.emission) == (operator.fingerprint, operator.emission)


def test_operator_tests_cover_every_registered_operator() -> None:
    assert {cls for one in OPERATOR_TYPES for cls in one.operators} == {cls for _, cls in EVERY.values()}
    assert {one.step for one in OPERATOR_TYPES} == {*Transform.STEPS.values(), type(ROWS)}
    kinds = [kind for one in OPERATOR_TYPES for kind in one.kinds]
    assert len(kinds) == len(set(kinds))


def test_no_function_dispatches_on_the_class_of_a_connection() -> None:
    """User packages cannot register in such a function. Connectors implement `ConnectorDescription` and `Connector`."""
    assert [name for name, question in find_dispatch_functions() if dispatches_on_connections(question)] == []


def test_every_package_raises_an_error_for_an_unregistered_operator() -> None:
    for name, question in find_dispatch_functions():
        bare = question.dispatch(object)
        package = ".".join(name.split(".")[:3])
        with pytest.raises(TypeError, match=rf"{package}\S* is not registered for UnregisteredOperator"):
            bare(*([UnregisteredOperator()] * len(signature(bare).parameters)))


def test_operators_implement_the_stage_logic_of_the_stores() -> None:
    assert issubclass(PaneWindowOperator, CompiledWindow)
    assert issubclass(SessionWindowOperator, CompiledWindow)
    assert issubclass(IntervalJoinOperator, CompiledJoin)
    assert issubclass(StatelessOperator, NoState)
