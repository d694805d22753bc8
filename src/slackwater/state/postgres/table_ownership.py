"""Find out which pipeline owns a table, and drop or rename only tables that the current pipeline owns.

A comment records the owner, because the name of a table does not prove who created it:

    slackwater_state_orders      COMMENT 'Slackwater: state of pipeline "orders", stage 1'
    slackwater_state_orders#2    COMMENT 'Slackwater: state of pipeline "orders", stage 2'

Tables of earlier versions have no comment. The owner of a state table is then the default of its column `pipeline_name`,
and a view belongs to the owner of the table that it reads. These tables get current names and comments when their
pipeline starts.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, NamedTuple

import psycopg

from slackwater.config.step_base import MOST_STAGES
from slackwater.errors import StateError, Topic
from slackwater.state.postgres import client
from slackwater.state.postgres.pipeline_tables import PipelineTables

STAGES = range(MOST_STAGES)  # all numbers that a stage can have
KINDS = {"windows": "VIEW", "staged": "TABLE", "state": "TABLE"}  # in the order in which they can be dropped
_COMMENT = re.compile(r'Slackwater: (\w+) of (pipeline ".*", stage \d+)')


class TableOwner(NamedTuple):
    """A table, view or other relation of Postgres, and its owner.

    Args:
        name: The quoted SQL name.
        owner: A description of the owner; None if it is the pipeline that uses this table name.
    """

    name: str
    owner: str | None


def _find_owner(db: psycopg.Connection[Any], tables: PipelineTables, table_kind: str) -> TableOwner | None:
    """Return the relation that has the name of a table of the pipeline, with its owner; None if there is none."""
    name = tables.qualify(tables.name_of(table_kind))
    row = db.execute(
        "SELECT c.relkind::text, obj_description(c.oid, 'pg_class'), pg_get_expr(d.adbin, d.adrelid), c.relpersistence::text,"
        " (SELECT count(*) FROM pg_attribute t WHERE t.attrelid = c.oid AND t.attname = 'token' AND t.attnum = 1)"
        " FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'pipeline_name' AND NOT a.attisdropped"
        " LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum WHERE c.oid = to_regclass(%s)",
        (name,),
    ).fetchone()
    if row is None:
        return None
    kind, comment, default, persistence, token = row
    if kind != ("v" if table_kind == "windows" else "r"):
        return TableOwner(name, "another object, such as an index or a sequence")
    if comment == tables.comment(table_kind):
        return TableOwner(name, None)
    if comment and (match := _COMMENT.fullmatch(comment)):
        return TableOwner(name, match[2])
    if table_kind == "windows":
        return TableOwner(name, _owner_of_view(db, name, tables))
    if table_kind == "staged":
        return TableOwner(
            name, None if persistence == "u" and token else "another program (it is not a table of Slackwater)"
        )
    pipeline = _literal(default)
    if pipeline is None:
        return TableOwner(name, "another program (it has no column pipeline_name)")
    return TableOwner(name, None if pipeline == tables.pipeline else f'pipeline "{pipeline}"')


def _owner_of_view(db: psycopg.Connection[Any], view: str, tables: PipelineTables) -> str | None:
    """Return a description of the owner of a view (quoted SQL name); None if it reads the table of this pipeline."""
    state = _find_owner(db, tables, "state")
    if state is None or state.owner is not None:
        return "another program (it does not read this pipeline's table)" if state is None else state.owner
    row = db.execute(
        "SELECT 1 FROM pg_rewrite r JOIN pg_depend d ON d.objid = r.oid AND d.classid = 'pg_rewrite'::regclass"
        " WHERE r.ev_class = to_regclass(%s) AND d.refobjid = to_regclass(%s)",
        (view, state.name),
    ).fetchone()
    return None if row is not None else "another program (it does not read this pipeline's table)"


def _literal(default: str | None) -> str | None:
    """Return the value of an SQL literal such as `'orders'::text`, or None for any other expression."""
    match = re.fullmatch(r"'((?:[^']|'')*)'::text", default or "")
    return match[1].replace("''", "'") if match else None


def find_owned_table(db: psycopg.Connection[Any], tables: PipelineTables, table_kind: str) -> str | None:
    """Return the quoted SQL name of a table of the pipeline, or None if the table is missing.

    `table_kind`: a key of KINDS. Raises StateError if the name has another owner.
    """
    owned = _find_owner(db, tables, table_kind)
    if owned is None or owned.owner is None:
        return None if owned is None else owned.name
    raise StateError(
        f'{owned.name} belongs to {owned.owner}, but pipeline "{tables.pipeline}" needs this name; nothing was '
        "changed; choose another pipeline name, or start the other pipeline once: this version renames its tables if "
        "an earlier version created them",
        Topic.NAME_IN_USE,
    )


def _is_free(db: psycopg.Connection[Any], tables: PipelineTables) -> bool:
    """Return whether none of the table names of a stage has another owner."""
    return all((owned := _find_owner(db, tables, table_kind)) is None or owned.owner is None for table_kind in KINDS)


def drop_owned_tables(db: psycopg.Connection[Any], tables: PipelineTables, *table_kinds: str) -> None:
    """Drop the tables of a stage, if they exist. `table_kinds`: keys of KINDS; by default, all of them.

    Raises StateError before any change if one of the tables has another owner.
    """
    names = {kind: find_owned_table(db, tables, kind) for kind in KINDS if kind in (table_kinds or KINDS)}
    for table_kind, name in names.items():
        if name is not None:
            db.execute(f"DROP {KINDS[table_kind]} {name}")


def record_table_owner(db: psycopg.Connection[Any], tables: PipelineTables, table_kind: str) -> None:
    """Record the owner of a table in its comment. `table_kind`: a key of KINDS."""
    comment = tables.comment(table_kind).replace("'", "''")
    name = tables.qualify(tables.name_of(table_kind))
    db.execute(f"COMMENT ON {KINDS[table_kind]} {name} IS '{comment}'")


def current_names(db: psycopg.Connection[Any], tables: PipelineTables, stages: int) -> PipelineTables:
    """Return the current table names of the first `stages` stages. They may be names from an earlier version."""
    former = set()
    for stage in range(stages):
        old = replace(tables, stage=stage, former=frozenset({stage}))
        new = tables.for_stage(stage)
        if old.name_of("state") == new.name_of("state") or _find_owner(db, new, "state") is not None:
            continue
        owned = _find_owner(db, old, "state")
        if owned is not None and owned.owner is None:
            former.add(stage)
    return replace(tables, former=frozenset(former))


def rename_tables(db: psycopg.Connection[Any], tables: PipelineTables, new: PipelineTables) -> None:
    """Rename the tables of a stage, or move them to another pipeline. Views and unlogged tables are dropped.

    The caller must have opened a transaction. Raises StateError if one of the names has another owner.

    Args:
        db: The connection with the open transaction.
        tables: The current names.
        new: The new names.
    """
    current, moves = find_owned_table(db, tables, "state"), tables.name_of("state") != new.name_of("state")
    if moves:  # otherwise, the view stays until its table changes
        drop_owned_tables(db, tables, "windows")
    if current is None:
        if moves:
            drop_owned_tables(db, tables, "staged")
        return
    if moves:
        drop_owned_tables(db, new, "windows", "staged")
        _rename_staged(db, tables, new)
        if find_owned_table(db, new, "state") is not None:
            raise StateError(
                f"both {current} and {new.state} contain the state of the same stage; remove the obsolete table",
                Topic.NAME_IN_USE,
            )
        db.execute(f"ALTER TABLE {current} RENAME TO {client.quote_name(new.name_of('state'))}")
    if tables.pipeline != new.pipeline:
        db.execute(f"ALTER TABLE {new.state} ALTER COLUMN pipeline_name SET DEFAULT {new.literal}")
        db.execute(f"UPDATE {new.state} SET pipeline_name = %s", (new.pipeline,))
    rename_indexes(db, new)
    record_table_owner(db, new, "state")


def _rename_staged(db: psycopg.Connection[Any], tables: PipelineTables, new: PipelineTables) -> None:
    """Rename the table of staged rows. An unlogged table is dropped instead, because no commit references its rows."""
    name = find_owned_table(db, tables, "staged")
    row = db.execute("SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass(%s)", (name,)).fetchone()
    if name is None or row != ("p",):
        drop_owned_tables(db, tables, "staged")
        return
    db.execute(f"ALTER TABLE {name} RENAME TO {client.quote_name(new.name_of('staged'))}")
    index = tables.qualify(tables.name_of("staged", "token"))
    db.execute(f"ALTER INDEX IF EXISTS {index} RENAME TO {client.quote_name(new.name_of('staged', 'token'))}")
    record_table_owner(db, new, "staged")


def rename_indexes(db: psycopg.Connection[Any], tables: PipelineTables) -> None:
    """Rename the indexes of a state table, because a name that Postgres chose may clash with that of another table."""
    rows = db.execute(
        "SELECT c.relname::text, i.indisprimary, array_agg(a.attname::text ORDER BY a.attnum) FROM pg_index i JOIN pg_class c ON"
        " c.oid = i.indexrelid JOIN pg_attribute a ON a.attrelid = i.indexrelid WHERE i.indrelid = to_regclass(%s)"
        " GROUP BY 1, 2 ORDER BY 1",
        (tables.state,),
    ).fetchall()
    taken = {name for name, _, _ in rows}
    for name, primary, columns in rows:
        index_name = tables.name_of("state", "pkey" if primary else "due")
        if index_name not in taken and (primary or columns in (["closes_at"], ["side", "event_time"])):
            db.execute(f"ALTER INDEX {tables.qualify(name)} RENAME TO {client.quote_name(index_name)}")
            taken.add(index_name)


def put_aside(db: psycopg.Connection[Any], tables: PipelineTables, aside: str) -> None:
    """Rename the pipeline to `aside`, in the tables that all pipelines share and in the names of its own tables."""
    for shared in tables.shared_tables:
        db.execute(f"UPDATE {shared} SET pipeline_name = %s WHERE pipeline_name = %s", (aside, tables.pipeline))
    current = current_names(db, tables, len(STAGES))
    for stage in STAGES:
        if _is_free(db, current.for_stage(stage)):
            rename_tables(db, current.for_stage(stage), replace(tables, pipeline=aside, stage=stage))


def has_commit(db: psycopg.Connection[Any], tables: PipelineTables) -> bool:
    """Return whether the pipeline has a stored commit."""
    query = f"SELECT 1 FROM {tables.pipelines} WHERE pipeline_name = %s"
    return db.execute(query, (tables.pipeline,)).fetchone() is not None


def delete_pipeline_rows(db: psycopg.Connection[Any], tables: PipelineTables) -> None:
    """Delete the rows of the pipeline from the tables that all pipelines share."""
    for shared in tables.shared_tables:
        db.execute(f"DELETE FROM {shared} WHERE pipeline_name = %s", (tables.pipeline,))
