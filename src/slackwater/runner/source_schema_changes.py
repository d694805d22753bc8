"""Compare, for `plan`, the columns of the tables that a pipeline reads with the columns recorded in its state.

Logs and catalogs provide the columns, so Spark is not needed. Each table is compared in a separate thread, and a table
that does not respond in time is reported.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slackwater.config import static_sql_check
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.source import Source
from slackwater.config.state_comparison import KeyChange, StateComparison
from slackwater.connectors.connector import C, Connector, connector_for
from slackwater.connectors.source import SourceUnavailableError
from slackwater.errors import SlackwaterError
from slackwater.evolution import added_columns
from slackwater.evolution.added_columns import Types
from slackwater.evolution.stage_matching import match_stages
from slackwater.state.commit import Commit, SourceRecord

LONGEST_S = 10.0  # for all tables together


@dataclass
class _TableCheck:
    """The comparison of one table.

    Args:
        stored_columns: The columns in the state, as Spark's JSON.
        changes: The changes that will be accepted at the next start.
        columns: The columns (name to type) that the next run will read.
        refused: Why the table would be rejected at startup; None if it would not.
        unknown: Why the comparison failed; an empty string while it runs; None once it is done.
    """

    spec: Source
    stored_columns: str | None
    changes: Sequence[KeyChange] = ()
    columns: Mapping[str, str] | None = None
    refused: str | None = None
    unknown: str | None = ""

    def compare(self, system: Connector[C], record: SourceRecord) -> None:
        try:
            (self.changes, self.columns), self.unknown = system.changes(self.spec, record), None
        except SourceUnavailableError as error:
            self.unknown = str(error)
        except SlackwaterError as error:
            self.refused, self.unknown = str(error), None
        except Exception as error:  # the state may contain anything
            self.unknown = f'source "{self.spec.name}": its columns cannot be compared ({type(error).__name__})'


def add_table_schema_changes(comparison: StateComparison, pipeline: Pipeline, commit: Commit) -> StateComparison:
    """Return the comparison of a config with a commit, extended with changes in the tables that the pipeline reads."""
    checks, threads = list[_TableCheck](), list[threading.Thread]()
    for spec in pipeline.sources:
        connection, record = resolve_connection(spec.connection, pipeline.connections), commit.sources.get(spec.name)
        if connection is None or record is None or not connector_for(connection).has_versions:
            continue
        checks.append(_TableCheck(spec, record.columns))
        threads.append(
            threading.Thread(target=checks[-1].compare, args=(connector_for(connection), record), daemon=True)
        )
        threads[-1].start()
    end = time.monotonic() + LONGEST_S
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0.0))
    downstream, unknown = _downstream_changes(pipeline, commit, checks)
    timeout_text = f"did not answer within {LONGEST_S:g} s; changes in its table are unknown"
    return replace(
        comparison,
        changes=(*comparison.changes, *(change for check in checks for change in check.changes), *downstream),
        waits="; ".join(reason for reason in (comparison.waits, *(check.refused for check in checks)) if reason)
        or None,
        unknown=(
            *(
                check.unknown or f'source "{check.spec.name}" {timeout_text}'
                for check in checks
                if check.unknown is not None
            ),
            *unknown,
        ),
    )


def _downstream_changes(
    pipeline: Pipeline, commit: Commit, checks: Sequence[_TableCheck]
) -> tuple[list[KeyChange], list[str]]:
    """Return the changes that new columns cause in joins and targets, and a line for each undecided stage.

    At the next start, Slackwater determines which of the new columns an undecided stage outputs.
    """
    if not any(check.changes for check in checks):
        return [], []
    current_columns = {check.spec.name: check.columns for check in checks if check.columns is not None}
    previous_columns = {
        **current_columns,
        **{
            check.spec.name: added_columns.schema_types(check.stored_columns)
            for check in checks
            if check.changes and check.stored_columns
        },
    }
    columns_before, columns_after = (
        static_sql_check.infer_stage_columns(pipeline, previous_columns),
        static_sql_check.infer_stage_columns(pipeline, current_columns),
    )
    changes, unknown, new_columns = list[KeyChange](), list[str](), dict[str, Types]()
    matched_stages = match_stages(pipeline.former_names, commit).matched
    for n, ((name, stage_pipeline), state) in enumerate(
        zip(pipeline.stage_pipelines.items(), matched_stages, strict=True)
    ):
        before, after = columns_before[name], columns_after[name]
        if stage_pipeline.transform.window is not None:
            continue  # aggregations name the columns of its results
        if not (before.is_complete and after.is_complete):
            unknown.append(f'stage "{name}": the next start determines which of the new columns it outputs')
            continue
        new_columns[name] = {c: t for c, t in after.types.items() if not before.has(c)}
        if new_columns[name] and state is not None and stage_pipeline.transform.join is not None:
            changes.append(
                added_columns.join_change(f"stages[{n}]." if pipeline.stages else "", state, new_columns[name])
            )
    return [*changes, *added_columns.added_column_changes(pipeline, commit, new_columns)], unknown
