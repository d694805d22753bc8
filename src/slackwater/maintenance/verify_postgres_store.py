"""Check the state of a pipeline in Postgres: the latest commit, the tables that it describes, and every row.

    commit                readable; the epoch, watermark and offsets that are stored next to it agree with it
    tables                they and their columns exist
    rows                  hashes, kinds, times and numbering, then the counts in the commit
    unpublished outputs   readable, with the number of rows in the commit
    lists                 they exist

No lock is taken. The checks run in one read-only transaction, and the connections that read rows share its snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import singledispatchmethod
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa

from slackwater.core.humanize import plural
from slackwater.errors import EpochError, SlackwaterError, StateError, raise_unregistered
from slackwater.evolution.pipeline_from_state import find_contradiction, matches_description, restore_operator
from slackwater.maintenance import verify_rows
from slackwater.maintenance.verify_rows import Problem, VerifyReport
from slackwater.operators.base import Operator
from slackwater.operators.interval_join import IntervalJoinOperator
from slackwater.operators.keyed_operator_base import KeyedOperator
from slackwater.operators.stateless import StatelessOperator
from slackwater.operators.window_operator_base import WindowOperator
from slackwater.state.commit import Commit, StageState
from slackwater.state.postgres import client, table_ownership
from slackwater.state.postgres.commit_log import read_latest_commit
from slackwater.state.postgres.commit_transaction import offset_rows
from slackwater.state.postgres.pipeline_tables import PipelineTables
from slackwater.state.postgres.schema_setup import column_types
from slackwater.state.postgres.shard import PostgresShard
from slackwater.state.postgres.store import PostgresStore
from slackwater.state.postgres.table_integrity import row_difference
from slackwater.watermark import NO_WATERMARK
from slackwater.windows.state_layout import KeyedStateLayout

RESTORE = "restore it from a backup of the database, or start over under a new name"


@dataclass
class _TablesCheck:
    """A check of the tables of a pipeline. `snapshot`: the id of the snapshot that the transaction exported."""

    db: psycopg.Connection[Any]
    url: str
    tables: PipelineTables
    report: VerifyReport
    snapshot: str = ""

    def add_problem(self, place: str, problem: str, remedy: str = RESTORE) -> None:
        self.report.problems.append(Problem(place, problem, (), remedy))

    def fetch_value(self, query: str, *parameters: Any) -> Any:
        row = self.db.execute(query, parameters).fetchone()
        return None if row is None else row[0]

    def check_commit(self, commit: Commit, published: int) -> None:
        """Check everything that the latest commit needs. `published`: the last published epoch."""
        self.snapshot = self.fetch_value("SELECT pg_export_snapshot()")
        self.report.epochs = (commit.epoch,)
        self.check_record(commit, published)
        self.check_outputs(commit, published)
        self.tables = table_ownership.current_names(self.db, self.tables, len(commit.stages))
        for number in range(len(commit.stages)):
            self.check_stage(commit, number)
        self.report.sound = None if self.report.problems else commit.epoch

    def check_record(self, commit: Commit, published: int) -> None:
        t = self.tables
        query = f"SELECT epoch, watermark FROM {t.pipelines} WHERE pipeline_name = %s"
        row = self.db.execute(query, (t.pipeline,)).fetchone()
        epoch, watermark = row if row is not None else (None, None)
        place = f"{t.pipelines}, row {t.pipeline!r}"
        if commit.pipeline != t.pipeline:
            self.add_problem(place, f"its record belongs to the pipeline {commit.pipeline!r}")
        if epoch != commit.epoch:
            self.add_problem(place, f"its epoch is {epoch}, but its record has epoch {commit.epoch}")
        if commit.watermark_us != NO_WATERMARK and watermark != client.to_datetime(commit.watermark_us):
            self.add_problem(place, "its watermark differs from the watermark in its record")
        if published > commit.epoch:
            self.add_problem(place, f"epoch {published} is recorded as published, but the latest is {commit.epoch}")
        expected = {(s, p): o for s, r in commit.sources.items() for p, o in offset_rows(r.offsets).items()}
        query = f'SELECT source, partition, "offset" FROM {t.offsets} WHERE pipeline_name = %s'
        stored = {(source, partition): offset for source, partition, offset in self.db.execute(query, (t.pipeline,))}
        remedy = "a start continues from the record; the next commit writes this table again"
        for name in sorted(set(expected) | set(stored)):
            if stored.get(name) != expected.get(name):
                offsets = f"found offset {stored.get(name)}, but the record has {expected.get(name)}"
                self.add_problem(t.offsets, f"source {name[0]!r}, partition {name[1]!r}: {offsets}", remedy)

    def check_outputs(self, commit: Commit, published: int) -> None:
        """Check that the unpublished outputs of a commit are readable, and that its lists exist."""
        t = self.tables
        for meta in (*commit.output, *commit.letters) if published < commit.epoch else ():
            self.report.rows += meta.rows
            data = self.fetch_value(f"SELECT data FROM {t.outputs} WHERE token = %s", meta.file)
            place = f"{t.outputs}, row {meta.file}"
            if data is None:
                self.add_problem(place, f"is missing; epoch {commit.epoch} is not published yet")
                continue
            self.report.bytes += len(data)
            try:
                count = pa.ipc.open_file(pa.py_buffer(data)).read_all().num_rows
            except (OSError, pa.ArrowException) as error:
                problem = f"cannot be read ({type(error).__name__}); epoch {commit.epoch} is not published yet"
                self.add_problem(place, problem)
                continue
            if count != meta.rows:
                self.add_problem(place, f"holds {plural(count, 'row')}, but the record says {meta.rows:,}")
        for name in commit.lists:
            if self.fetch_value(f"SELECT 1 FROM {t.lists} WHERE token = %s", name) is None:
                self.add_problem(f"{t.lists}, row {name}", "is missing")

    def check_stage(self, commit: Commit, number: int) -> None:
        """Check the table of a stage, its columns and its rows."""
        table, state = self.tables.for_stage(number), commit.stages[number]
        if not client.table_exists(self.db, table.state):
            self.add_problem(table.state, "is missing")
            return
        self.report.files += 1
        self.report.bytes += self.fetch_value("SELECT pg_total_relation_size(%s)", table.state)
        query = f"SELECT count(*) FROM {table.state} WHERE pipeline_name <> %s OR epoch > %s"
        if foreign_rows := self.fetch_value(query, table.pipeline, commit.epoch):
            problem = f"{plural(foreign_rows, 'row')} of another pipeline, or of an epoch after {commit.epoch}"
            self.add_problem(table.state, problem)
        for difference in () if state.table is None else row_difference(self.db, table.state, state.table):
            self.add_problem(table.state, difference)
        self._check_staged(table, state)
        try:
            step = restore_operator(commit, number, trusting=True)
        except SlackwaterError:
            self.report.unread += 1
            return
        if wrong := find_contradiction(step, state):
            self.add_problem(f"{self.tables.pipelines}, row {self.tables.pipeline!r}", f"its record {wrong}")
        if list(self._column_problems(table, column_types(step, table))):
            return
        try:
            for wrong in self._row_problems(table, step, state, commit.epoch):
                self.add_problem(table.state, wrong)
        except (EpochError, StateError) as error:
            self.add_problem(table.state, str(error).removeprefix("state could not be read: "))
        except (pl.exceptions.PolarsError, pa.ArrowException, TypeError, ValueError) as error:
            self.add_problem(table.state, f"cannot be read as the record describes it ({type(error).__name__})")

    def _check_staged(self, table: PipelineTables, state: StageState) -> None:
        """Check that the staged rows that the commit references exist."""
        expected = {m.file: m.rows for m in state.metas if m.file}
        if not expected:
            return
        if not client.table_exists(self.db, table.staged):
            self.add_problem(table.staged, "is missing")
            return
        query = f"SELECT token, count(*) FROM {table.staged} WHERE token = ANY(%s) GROUP BY 1"
        counts = dict(self.db.execute(query, (list(expected),)).fetchall())
        for token, count in expected.items():
            if counts.get(token, 0) != count:
                problem = f"holds {plural(counts.get(token, 0), 'row')} under {token}, but the record says {count:,}"
                self.add_problem(table.staged, problem)

    def _column_problems(self, table: PipelineTables, expected_types: dict[str, str]) -> Iterator[str]:
        types = client.types_of(self.db, table.state)
        for name, type_ in expected_types.items():
            expected = type_.removesuffix(" NOT NULL")
            if types.get(name) != expected:
                problem = f'column "{name}" is {types.get(name, "missing")}, expected {expected}'
                self.add_problem(table.state, problem)
                yield problem

    def _row_problems(self, table: PipelineTables, operator: Operator, stage: StageState, epoch: int) -> Iterator[str]:
        exact = matches_description(operator, stage)
        if isinstance(operator, KeyedStateLayout):  # the rows of other operators have no units
            yield from self._count_bad_ordinals(table)
        for shard, metas in enumerate(stage.segments):
            state = PostgresShard(
                self.url, table, shard, stage.shards, epoch, metas, self.snapshot, trusts_copies=False
            )
            yield from self._shard_problems(operator, state, stage, exact)

    @singledispatchmethod
    def _shard_problems(
        self, operator: Operator, state: PostgresShard, stage: StageState, exact: bool
    ) -> Iterator[str]:
        """Describe the problems in the rows of a shard, and how the rows differ from the counts in the commit.

        Args:
            operator: The operator of the stage.
            state: The shard.
            stage: The stage in the commit.
            exact: Whether the rows were stored for the emission settings of the operator.
        """
        raise_unregistered(operator, "slackwater.maintenance.verify_postgres_store")

    @_shard_problems.register(WindowOperator)
    @_shard_problems.register(KeyedOperator)
    def _(
        self, operator: WindowOperator | KeyedOperator, state: PostgresShard, stage: StageState, exact: bool
    ) -> Iterator[str]:
        frame = state.reader(operator).scan()
        self.report.rows += frame.height
        wrong = list(verify_rows.check_segment_rows(operator, "", frame, state.shard, state.shards, exact))
        yield from wrong
        if exact and not wrong:
            problems = verify_rows.check_row_counts(operator, frame, stage, state.shard)
            yield from (f"shard {state.shard}: {text}" for text in problems)

    @_shard_problems.register
    def _(self, operator: IntervalJoinOperator, state: PostgresShard, stage: StageState, exact: bool) -> Iterator[str]:
        for side in operator.sides:
            frame = state.buffers(operator).scan(side.which, stage.watermark_us)
            self.report.rows += frame.height
            yield from verify_rows.check_segment_rows(operator, side.name, frame, state.shard, state.shards)
            recorded = sum(m.rows for m in state.metas if m.kind == side.name)
            if exact and frame.height != recorded:
                stored = f"{plural(frame.height, 'row')} of the {side.name} side in shard {state.shard}"
                yield f"{stored}, but the record says {recorded:,}"

    @_shard_problems.register
    def _(self, operator: StatelessOperator, state: PostgresShard, stage: StageState, exact: bool) -> Iterator[str]:
        yield from ()  # `check_stage` reports rows in the table of a stateless stage

    def _count_bad_ordinals(self, table: PipelineTables) -> Iterator[str]:
        broken = self.fetch_value(
            f"SELECT count(*) FROM (SELECT 1 FROM {table.state} GROUP BY unit HAVING min(ordinal) <> 0"
            " OR max(ordinal) <> count(*) - 1) x"
        )
        if broken:
            yield f"{plural(broken, 'unit')} with missing rows: the rows are not numbered 0, 1, …"


def verify_postgres(store: PostgresStore) -> VerifyReport:
    """Check everything that the latest commit needs.

    Raises StartError if the database is unreachable, and StateError if reading from it fails.
    """
    tables, location = store.tables, store.location
    report = VerifyReport(tables.pipeline, "postgres")
    with (
        client.report_errors(location),
        closing(client.open_connection(store.url, "state store")) as db,
        db.transaction(),
    ):
        db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        db.execute("SET LOCAL lock_timeout = '5s'")
        check = _TablesCheck(db, store.url, tables, report)
        shared_tables = (tables.pipelines, tables.offsets, tables.outputs, tables.lists)
        missing = [table for table in shared_tables if not client.table_exists(db, table)]
        for table in missing:
            check.add_problem(table, "is missing")
        if missing:
            return report
        report.files = len(shared_tables)
        try:
            latest = read_latest_commit(db, tables, location)
        except StateError as error:
            fact, _, remedy = str(error).partition("; ")
            check.add_problem(tables.pipelines, fact, remedy)
            return report
        if latest is not None:
            check.check_commit(*latest[:2])
    return report
