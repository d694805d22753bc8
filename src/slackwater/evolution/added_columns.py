"""Columns added to sources, state and targets: where they are accepted, and what they contain in earlier rows.

    source ──▶ SQL ──▶ join: NULL in buffered rows ──▶ results ──▶ target: gets the column, NULL in earlier rows

All of this requires `schema_changes = "add"` in the source. Columns are only added; they are never removed or retyped.
If rows of the source reach a target, the columns that the latest commit did not write are added to the target. A table
that this state has never written to stays unchanged.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from slackwater.config.pipeline import Pipeline
from slackwater.config.state_comparison import COMPATIBLE, KeyChange
from slackwater.core.humanize import plural
from slackwater.errors import StartError, Topic
from slackwater.evolution import target_changes
from slackwater.state.commit import Commit, StageState

ADD = "add"
Types = Mapping[str, str | None]  # type of each column by name; None if unknown


def _shown(columns: Types) -> str:
    return ", ".join(f'"{name}"' + (f" ({type_})" if type_ else "") for name, type_ in columns.items())


# -- state ---------------------------------------------------------------------------------------------------------------


def added_side_columns(before: Any, now: Any) -> list[list[str]] | None:
    """Return the added columns ("name type") of each side of a join; None if a column was removed or retyped."""
    if before is None or any(Counter(was) - Counter(is_) for was, is_ in zip(before, now, strict=True)):
        return None
    return [[column for column in is_ if column not in was] for was, is_ in zip(before, now, strict=True)]


def join_change(prefix: str, state: StageState, new: Types) -> KeyChange:
    """Return the change for columns that were added to a join. It does not rewrite the state."""
    rows, had = sum(m.rows for m in state.metas), sum(map(len, state.fingerprint.get("columns", ())))
    how = f"{plural(rows, 'row')} of the state {'has' if rows == 1 else 'have'} NULL in new columns, without a rewrite"
    has = f"{plural(had + len(new), 'column')}, new: {_shown(new)}"
    return KeyChange(f"{prefix}columns", plural(had, "column"), has, COMPATIBLE, how, location="the join")


# -- targets -------------------------------------------------------------------------------------------------------------


def targets_accepting_columns(pipeline: Pipeline) -> set[str]:
    """Return the targets that receive rows of a source with `schema_changes = "add"`."""
    adding = {s.name for s in pipeline.sources if s.schema_changes == ADD}
    for name, sub_pipeline in pipeline.stage_pipelines.items():
        if adding & {s.name for s in sub_pipeline.sources}:
            adding.add(name)
    return {name for name, sub_pipeline in pipeline.per_target.items() if sub_pipeline.target.from_ in adding}


def added_target_columns(
    pipeline: Pipeline, commit: Commit | None, results: Mapping[str, Types]
) -> dict[str, dict[str, str | None]]:
    """Return the columns that are added to targets at startup, by target.

    `results`: the output columns by stage. Stages with unknown columns may be missing.
    """
    if commit is None or not commit.targets:
        return {}
    now, added = target_changes.list_configured_targets(pipeline), {}
    before = target_changes.with_current_names(commit, pipeline.former_names, list(now)).targets
    for name in targets_accepting_columns(pipeline) & now.keys() & before.keys():
        was, columns = before[name], results.get(now[name].stage, {})
        if was.columns is not None and was.place == now[name].place:
            added[name] = {c: t for c, t in columns.items() if c not in was.columns}
    return {name: added[name] for name in now if added.get(name)}


def added_column_changes(pipeline: Pipeline, commit: Commit, results: Mapping[str, Types]) -> Iterator[KeyChange]:
    """Yield the changes for the columns that are added to targets at startup."""
    for name, new in added_target_columns(pipeline, commit, results).items():
        label = "target" if len(pipeline.per_target) == 1 else f'target "{name}"'
        it = "it" if len(new) == 1 else "them"
        how = f"the target table gets {it}, with NULL in existing rows; new files and messages contain {it}"
        yield KeyChange(f"{label} columns", None, f"new: {_shown(new)}", COMPATIBLE, how, location="the result")


# -- sources -------------------------------------------------------------------------------------------------------------


def check_schema(source: str, before: str | None, now: str) -> list[str]:
    """Compare the schema of a source with its schema at the first start. Return warnings about new columns.

    Args:
        source: The name of the source.
        before: The schema at the first start, in Spark's JSON form; None before the first start.
        now: The current schema, in the same form.

    Raises StartError if a column is missing or has another type.
    """
    if before is None:
        return []
    old, new = schema_types(before), schema_types(now)
    wrong = [f'"{c}" is now {new.get(c, "missing")} (was {t})' for c, t in old.items() if new.get(c) != t]
    if wrong:
        raise StartError(
            f'source "{source}": columns changed since the first start: {"; ".join(wrong)}; restore them in the schema',
            Topic.STATE_OF_OTHER_CONFIG,
        )
    added = [c for c in new if c not in old]
    return [f'source "{source}": new columns since the first start: {", ".join(added)}'] if added else []


def schema_types(schema: str) -> dict[str, str]:
    """Return the column types of a schema by column name. Schema and types are in Spark's JSON form."""
    return {
        f["name"]: json.dumps(f["type"]) if isinstance(f["type"], dict) else f["type"]
        for f in json.loads(schema)["fields"]
    }
