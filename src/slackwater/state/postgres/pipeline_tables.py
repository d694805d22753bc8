"""The tables of a pipeline in Postgres: their names and columns, and the SQL statements that create and alter them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import xxhash

from slackwater.state.commit import FORMAT
from slackwater.state.postgres import client
from slackwater.windows.state_layout import (
    EMITTED,
    EMITTED_FRAGMENT,
    FRAGMENT,
    REVISED,
    TOMBSTONE,
    WHOLE,
    KeyedStateLayout,
)

# the table's column names for the hidden columns of state rows
_READABLE = {
    "__h": "unit",
    "__kh": "key_hash",
    "__kind": "kind",
    "__start": "window_start",
    "__last": "last_event",
    "__due": "closes_at",
    "__end": "reaches_to_us",
    "__rev": "revision",
    "__out": "emitted_starts",
}
TIMES = ("__start", "__last", "__due")
_OWN = ("pipeline_name", "ordinal", "state_version", "epoch", "updated_at")  # columns that no state row has
_RESERVED = {*_READABLE.values(), *_OWN, "token"}
MARK = "#"  # separates the name of a pipeline, which cannot contain it, from suffixes


@dataclass(frozen=True)
class PipelineTables:
    """The quoted SQL names of the tables of one stage, and of the tables that all pipelines share.

    Args:
        schema: The name of the schema.
        pipeline: The name of the pipeline.
        stage: The number of the stage. The names of tables of later stages include it.
        former: The stages whose tables still have names from earlier versions. The next start renames these tables.
    """

    schema: str
    pipeline: str
    stage: int = 0
    former: frozenset[int] = frozenset()

    def qualify(self, name: str) -> str:
        """Return the quoted SQL name, including the schema, of a table or an index."""
        return f"{client.quote_name(self.schema)}.{client.quote_name(name)}"

    @property
    def pipelines(self) -> str:
        return self.qualify("slackwater_pipelines")

    @property
    def offsets(self) -> str:
        return self.qualify("slackwater_offsets")

    @property
    def outputs(self) -> str:
        return self.qualify("slackwater_outputs")

    @property
    def lists(self) -> str:
        return self.qualify("slackwater_lists")

    @property
    def runs(self) -> str:
        return self.qualify("slackwater_runs")

    @property
    def shared_tables(self) -> tuple[str, ...]:
        """Return the names of the tables that all pipelines in the schema share."""
        return self.outputs, self.lists, self.offsets, self.runs, self.pipelines

    @property
    def state(self) -> str:
        return self.qualify(self.name_of("state"))

    @property
    def staged(self) -> str:
        return self.qualify(self.name_of("staged"))

    @property
    def windows(self) -> str:
        return self.qualify(self.name_of("windows"))

    def name_of(self, table_kind: str, index: str = "") -> str:
        """Return the unquoted name of a table, such as `slackwater_state_orders#2`, or of one of its indexes.

        Long names are truncated and made unique by a hash. Names of two pipelines never collide, because the name of a
        pipeline cannot contain `#`.

        Args:
            table_kind: "state", "staged" or "windows".
            index: The suffix of an index, such as "pkey"; empty for the table.
        """
        if self.stage in self.former and not index:
            return self._former_name_of(table_kind)
        tail = (f"{MARK}{self.stage + 1}" if self.stage else "") + (f"{MARK}{index}" if index else "")
        name = f"slackwater_{table_kind}_{self.pipeline}"
        room = client.NAME_BYTES - len(tail)
        if len(name) > room:
            name = f"{name[: room - 17]}{MARK}{xxhash.xxh64_hexdigest(self.pipeline.encode())}"
        return name + tail

    def _former_name_of(self, table_kind: str) -> str:
        """Return the unquoted table name that earlier versions used.

        In those versions, the second stage of `orders` and a pipeline `orders.2` used the same table name.
        """
        pipeline = f"{self.pipeline}.{self.stage + 1}" if self.stage else self.pipeline
        name = f"slackwater_{table_kind}_{pipeline}"
        if len(name) <= client.NAME_BYTES:
            return name
        return f"{name[:46]}_{xxhash.xxh64_hexdigest(pipeline.encode())}"

    def for_stage(self, stage: int) -> PipelineTables:
        """Return the names for another stage of the pipeline."""
        return replace(self, stage=stage)

    def comment(self, table_kind: str) -> str:
        """Return the comment that records the owner of a table or view."""
        return f'Slackwater: {table_kind} of pipeline "{self.pipeline}", stage {self.stage + 1}'

    def columns(self, logic: KeyedStateLayout) -> dict[str, str]:
        """Map the columns of state rows to column names in the table."""
        taken = set(_RESERVED)

        def unused_name(name: str, prefix: str) -> str:
            while name in taken:
                name = f"{prefix}.{name}"
            taken.add(name)
            return name

        keys = {k: unused_name(k, "key") for k in logic.key_names}
        accumulators = {a: unused_name(a, "acc") for a in logic.accumulators}
        hidden = {c: name for c, name in _READABLE.items() if c in logic.state_schema}
        return {**hidden, **keys, **accumulators}

    def shared(self) -> list[str]:
        """Return the SQL statements that create the tables shared by all pipelines in the schema."""
        return [
            f"""CREATE TABLE IF NOT EXISTS {self.pipelines} (
                pipeline_name text PRIMARY KEY, state_version integer NOT NULL, epoch bigint NOT NULL,
                published_epoch bigint NOT NULL DEFAULT -1, watermark timestamptz, open_windows bigint NOT NULL,
                commit_id uuid NOT NULL, record jsonb NOT NULL, updated_at timestamptz NOT NULL DEFAULT now())""",
            f"""CREATE TABLE IF NOT EXISTS {self.offsets} (
                pipeline_name text, source text, partition text, "offset" text, newest_event timestamptz,
                idle boolean NOT NULL, state_version integer NOT NULL, epoch bigint NOT NULL,
                updated_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (pipeline_name, source, partition))""",
            f"""CREATE TABLE IF NOT EXISTS {self.outputs} (
                token text PRIMARY KEY, pipeline_name text NOT NULL, epoch bigint NOT NULL, data bytea NOT NULL)""",
            f"""CREATE TABLE IF NOT EXISTS {self.lists} (
                token text PRIMARY KEY, pipeline_name text NOT NULL, epoch bigint NOT NULL, lines text NOT NULL)""",
            f"""CREATE TABLE IF NOT EXISTS {self.runs} (
                pipeline_name text, started_at timestamptz, runner text, epoch bigint NOT NULL, ended_at timestamptz,
                outcome text, last_epoch bigint, error text, PRIMARY KEY (pipeline_name, started_at, runner))""",
        ]

    def types(self, logic: KeyedStateLayout) -> dict[str, str]:
        """Map the columns of the table to their types, except the columns that all state tables share."""
        types = {name: client.sql_type_of(dtype) for name, dtype in logic.state_schema.items()}
        types |= dict.fromkeys(TIMES, "timestamp with time zone")
        return {column: types[name] for name, column in self.columns(logic).items()}

    @property
    def literal(self) -> str:
        """Return the name of the pipeline as an SQL literal."""
        return "'" + self.pipeline.replace("'", "''") + "'"

    def create_state(self, logic: KeyedStateLayout) -> str:
        """Return the SQL statement that creates the state table of a window or keyed stage."""
        columns = ", ".join(f"{client.quote_name(c)} {t}" for c, t in self.types(logic).items())
        return (
            f"CREATE TABLE {self.state} (pipeline_name text NOT NULL DEFAULT {self.literal}, {columns}, ordinal integer NOT NULL,"
            f" state_version integer NOT NULL DEFAULT {FORMAT}, epoch bigint NOT NULL, updated_at timestamptz NOT NULL"
            f" DEFAULT now(), CONSTRAINT {client.quote_name(self.name_of('state', 'pkey'))} PRIMARY KEY (unit, ordinal))"
            " WITH (fillfactor = 80)"
        )

    def create_empty(self) -> str:
        """Return the SQL statement that creates the state table of a stage without state, which stays empty."""
        columns = f"pipeline_name text NOT NULL DEFAULT {self.literal}, key_hash bigint NOT NULL, epoch bigint NOT NULL"
        return f"CREATE TABLE {self.state} ({columns})"

    def create_index(self) -> str:
        """Return the SQL statement that creates the index for finding due rows."""
        return f"CREATE INDEX {client.quote_name(self.name_of('state', 'due'))} ON {self.state} (closes_at)"

    def complete_state(self, logic: KeyedStateLayout) -> str:
        """Return an SQL statement that adds missing columns for revisions, or "" if the window has no revisions."""
        types = {c: client.sql_type_of(t) for c, t in REVISED.items() if logic.revises}
        defaults = {"__rev": "0", "__out": "'{}'"}
        added = [
            f"ADD COLUMN IF NOT EXISTS {client.quote_name(_READABLE[c])} {t} DEFAULT {defaults[c]}"
            for c, t in types.items()
        ]
        return f"ALTER TABLE {self.state} {', '.join(added)}" if added else ""

    def alter_state(self, logic: KeyedStateLayout, existing_columns: Sequence[str]) -> list[str]:
        """Return the SQL statements that alter the state table and its view for a changed window, if necessary.

        `existing_columns`: the current columns of the table.
        """
        types = self.types(logic)
        expected_columns = {*types, *_READABLE.values(), *_OWN}
        added = [f"ADD COLUMN {client.quote_name(c)} {t}" for c, t in types.items() if c not in existing_columns]
        dropped = [f"DROP COLUMN {client.quote_name(c)}" for c in existing_columns if c not in expected_columns]
        if not added and not dropped:
            return []
        alter = f"ALTER TABLE {self.state} {', '.join([*added, *dropped])}"
        view = self.comment("windows").replace("'", "''")
        return [
            f"DROP VIEW IF EXISTS {self.windows}",
            alter,
            self.create_view(logic),
            f"COMMENT ON VIEW {self.windows} IS '{view}'",
        ]

    def create_staged(self, logic: KeyedStateLayout) -> list[str]:
        """Return the SQL statements that create the table of staged rows and its index."""
        columns = ", ".join(f"{client.quote_name(c)} {t}" for c, t in self.types(logic).items())
        return [
            f'CREATE TABLE {self.staged} (token text COLLATE "C" NOT NULL, {columns}, ordinal integer NOT NULL, epoch bigint NOT'
            " NULL, updated_at timestamptz NOT NULL DEFAULT now())",
            f"CREATE INDEX {client.quote_name(self.name_of('staged', 'token'))} ON {self.staged} (token)",
        ]

    def newest(self, columns: str) -> str:
        """Return an SQL query for all state rows as of the latest commit.

        It selects the newest staged version of each unit, and the rows of the state table for units without one.
        `columns`: the columns to select, which both tables must have.
        """
        place = client.quote_name(f"slackwater{MARK}place")  # keys may have any other name
        return (
            f"WITH named AS (SELECT m.meta ->> 'file' AS token, m.place AS {place} FROM"
            f" {self.pipelines} p, jsonb_array_elements(p.record #> '{{stages,{self.stage},segments}}') AS shard (metas),"
            " jsonb_array_elements(shard.metas) WITH ORDINALITY AS m (meta, place)"
            f" WHERE p.pipeline_name = {self.literal} AND m.meta ->> 'file' <> ''),"
            f" recent AS (SELECT t.*, named.{place} FROM {self.staged} t JOIN named USING (token)),"
            f" latest AS (SELECT unit, max({place}) AS {place} FROM recent GROUP BY unit)"
            f" SELECT {columns} FROM recent JOIN latest USING (unit, {place}) WHERE kind <> {TOMBSTONE} UNION ALL"
            f" SELECT {columns} FROM {self.state} s WHERE NOT EXISTS (SELECT 1 FROM latest WHERE latest.unit = s.unit)"
        )

    def create_view(self, logic: KeyedStateLayout) -> str:
        """Return the SQL statement that creates the view of open windows, which omits most hidden columns."""
        names = self.columns(logic)
        shown = client.quote_names([names[n] for n in (*logic.key_names, *TIMES, *logic.accumulators)])
        return (
            f"CREATE OR REPLACE VIEW {self.windows} AS SELECT p.pipeline_name, {shown}, s.epoch, s.updated_at"
            f" FROM ({self.newest(f'{shown}, kind, epoch, updated_at')}) s JOIN {self.pipelines} p ON p.pipeline_name = {self.literal}"
            f" WHERE s.kind IN ({FRAGMENT}, {EMITTED_FRAGMENT})"
            f" OR s.kind IN ({WHOLE}, {EMITTED}) AND (p.watermark IS NULL OR s.closes_at > p.watermark)"
        )


def add_columns(table: str, types: Mapping[str, str], existing_columns: Collection[str]) -> str:
    """Return an SQL statement that adds missing columns to a table, or "" if no column is missing.

    Args:
        table: The quoted SQL name of the table.
        types: The expected columns and their types.
        existing_columns: The current columns of the table.
    """
    added = [f"ADD COLUMN {client.quote_name(c)} {t}" for c, t in types.items() if c not in existing_columns]
    return f"ALTER TABLE {table} {', '.join(added)}" if added else ""
