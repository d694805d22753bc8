"""Describe the rows that an epoch rejects: bad rows, unstorable rows, and late rows of pre-aggregated windows.

Rejected rows are read again for the reasons, a few samples, and dead letters. The description of a bad row contains the
column and value at fault, the line in the file, and advice for two causes: a header that was read as a row, and a
string that is longer than the reader accepts.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from slackwater.config.source import Source, parse_declared_columns
from slackwater.connectors import bad_value_search
from slackwater.core.column_names import CORRUPT, quote_identifier
from slackwater.core.dead_letter_columns import LETTER
from slackwater.core.humanize import plural
from slackwater.core.paths import file_uri_to_path
from slackwater.engine.engine_interface import IngestOutcome, UnstorableRows
from slackwater.errors import EpochError, Topic
from slackwater.operators import unstorable_rows
from slackwater.operators.base import ShardTask
from slackwater.operators.dead_letters import ORIGIN, dead_letter_columns_sql, unstorable_columns
from slackwater.operators.reports import DeadLetterFile
from slackwater.operators.window_operator_base import WindowOperator
from slackwater.spark import epoch_sql
from slackwater.spark.row_query_builder import RowQueryBuilder, TimedRows
from slackwater.spark.tuning.source_statistics import FILE, FINGERPRINT
from slackwater.spark.worker_tasks import dead_letters_task, late_task, run_on_partitions
from slackwater.state.protocol import ShardState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MAX_SHOWN = 300  # characters of a row in a message
_MAX_ANALYZED = 20_000  # characters of a row or a record
_MAX_SEARCHED_BYTES = 4_000_000  # the part of a file that an epoch searches for a line
_MAX_STRING_LENGTH = 20_000_000  # the JSON reader's default limit in characters; the option maxStringLen changes it


@dataclass(frozen=True)
class RejectedRowHandler:
    """Collects samples and dead letters of the rows that one step rejects. `rows`: the builder of the row plan."""

    rows: RowQueryBuilder

    def with_dead_letters(self, read: TimedRows, outcome: IngestOutcome, tasks: Sequence[ShardTask]) -> IngestOutcome:
        """Read the rejected rows again, and return the outcome with their samples and dead letters.

        Args:
            read: The rows of the batch.
            outcome: The outcome of the epoch without samples and dead letters.
            tasks: The tasks of all shards.
        """
        bad = [name for name, s in outcome.sources.items() if s.bad]
        staged: list[DeadLetterFile] = []
        if self.rows.pipeline.transform.on_error == "dlq":
            staged += [letters for n in bad for letters in self._write_bad(n, read.timed[n], tasks[0].state)]
        some_late = any(r.late or r.partly_late for r in outcome.reports)
        if self.rows.pipeline.keeps_late_rows and self.rows.logic.is_preaggregated and some_late:
            staged += self._write_late(read, tasks[0])
        samples = {name: self._bad_samples(name, read.timed[name]) for name in bad}
        unfit, letters = self._unfit(read, outcome, tasks[0]) if outcome.unstorable else ((), [])
        return replace(outcome, bad_samples=samples, unstorable=unfit, staged=[*staged, *letters])

    def _write_bad(self, name: str, timed: DataFrame, state: ShardState) -> list[DeadLetterFile]:
        bad = timed.where("__bad IS NOT NULL")
        columns = dead_letter_columns_sql(
            {c: kind for c, kind in timed.dtypes if c not in (FILE, FINGERPRINT)},
            self.rows.pipeline.name,
            name,
            state.epoch,
        )
        staged = run_on_partitions(bad.selectExpr(*columns), [f.name for f in LETTER], dead_letters_task(state))
        return [DeadLetterFile.model_validate_json(letters) for letters in staged]

    def _write_late(self, read: TimedRows, task: ShardTask) -> list[DeadLetterFile]:
        """Write dead letters for late rows of pre-aggregated windows. This is a second job over the output of the SQL.

        The job needs no state, because only the event time and the watermark determine whether a row is late.
        """
        late = epoch_sql.is_earlier_sql(task.operator.late_threshold(task.watermark))
        keys = task.operator.keys if isinstance(task.operator, WindowOperator) else ()
        frames = [
            out.where(late).selectExpr(*epoch_sql.late_columns(keys, tag))
            for name, timed in read.timed.items()
            for _, tag, out in self.rows.outputs(read, name, timed)
        ]
        rows = reduce(lambda a, b: a.unionByName(b), frames)
        return [
            DeadLetterFile.model_validate_json(letters)
            for letters in run_on_partitions(rows, rows.columns, late_task(task))
        ]

    def _unfit(
        self, read: TimedRows, outcome: IngestOutcome, task: ShardTask
    ) -> tuple[list[UnstorableRows], list[DeadLetterFile]]:
        """Reread the unstorable rows. Return the reasons and a few samples for each source, and the dead letters.

        Raises EpochError if the number of these rows is not the same as in the first read.
        """
        unstorable, staged = [], list[DeadLetterFile]()
        for source_rows in outcome.unstorable:
            marked = [
                m
                for input_path, _, out in self.rows.outputs(read, source_rows.source, read.timed[source_rows.source])
                if (m := self.rows.with_unstorable_reason(input_path, out, task.capacity)) is not None
            ]
            frames = [m.where(f"{unstorable_rows.UNFIT} IS NOT NULL") for m in marked]
            reasons: Counter[str] = Counter()
            samples: list[str] = []
            for rows in frames:
                reasons.update({r[0]: r[1] for r in rows.groupBy(unstorable_rows.UNFIT).count().collect()})
                row = f"to_json(struct({', '.join(quote_identifier(c) for c in rows.columns if c not in (unstorable_rows.UNFIT, ORIGIN))}))"
                samples += [
                    f"{r[0]}: {r[1][:300]}" for r in rows.selectExpr(unstorable_rows.UNFIT, row).limit(3).collect()
                ]
                if self.rows.pipeline.transform.on_error == "dlq":
                    columns = unstorable_columns(
                        rows.columns, self.rows.pipeline.name, source_rows.source, task.state.epoch
                    )
                    letters = run_on_partitions(
                        rows.selectExpr(*columns), [f.name for f in LETTER], dead_letters_task(task.state)
                    )
                    staged += [DeadLetterFile.model_validate_json(letter_file) for letter_file in letters]
            if sum(reasons.values()) != source_rows.rows:
                raise EpochError(
                    f'{self.rows.pipeline.name}: source "{source_rows.source}": the input changed between two '
                    f"reads ({plural(source_rows.rows, 'row')} that cannot be stored in the first read, but "
                    f"{sum(reasons.values())} in the second), so this epoch was not committed; the next start "
                    "runs it again",
                    Topic.INPUT_CHANGED,
                )
            unstorable.append(UnstorableRows(source_rows.source, reasons, samples[:3]))
        return unstorable, staged

    def _bad_samples(self, name: str, timed: DataFrame) -> list[str]:
        """Return descriptions of a few bad rows: the reason, the row as JSON, and its file or offset."""
        columns = [c for c in timed.columns if c not in ("__bad", "_event_ts") and not c.startswith("_")]
        columns += [CORRUPT] if CORRUPT in timed.columns else []
        row = ", ".join(quote_identifier(c) for c in columns)
        bad = timed.where("__bad IS NOT NULL")
        place = (
            "concat(_topic, '-', _partition, ' at offset ', _offset)"
            if "_offset" in timed.columns
            else "input_file_name()"
        )
        text = CORRUPT if CORRUPT in timed.columns else "CAST(NULL AS STRING)"
        parts = (
            f"substring(to_json(struct({row})), 1, {_MAX_ANALYZED}) AS row",
            f"substring({text}, 1, {_MAX_ANALYZED}) AS text",
            f"length({text}) AS length",
            f"{'false' if '_offset' in timed.columns else 'true'} AS of_file",
        )
        samples = bad.selectExpr("__bad", *parts, f"{place} AS place").limit(3).collect()
        spec = next((source for source in self.rows.pipeline.sources if source.name == name), None)
        column = self.rows.pipeline.transform.step.event_time_column
        return describe_bad_rows(spec, column, [r.asDict() for r in samples])


# -- descriptions of bad rows ------------------------------------------------------------------------------------------


def decode_hint(source: Source, text: str | None, length: int | None) -> str:
    """Return advice about an undecodable record, to append to its description. Empty if the cause is unknown.

    Args:
        source: The source of the record.
        text: The text of the record, which may be truncated.
        length: The length of the complete record in characters.
    """
    options = {key.casefold(): value for key, value in source.options.items()}
    max_length = int(options["maxstringlen"]) if options.get("maxstringlen", "").isdecimal() else _MAX_STRING_LENGTH
    if source.format != "csv" and length is not None and length > max_length:
        return (
            f" (the record is {length / 1e6:,.0f} MB long, but the JSON reader accepts strings of at most "
            f"{max_length:,} characters; write shorter strings, or raise options"
            ' = { maxStringLen = "…" })'
        )
    if source.format == "csv" and text and options.get("header", "false").casefold() != "true":
        columns = [name.casefold() for name in parse_declared_columns(source.schema_ or "")]
        cells = next(csv.reader([text], delimiter=(options.get("sep") or options.get("delimiter") or ",")[:1]), [])
        if columns and {cell.strip().casefold() for cell in cells} & set(columns):
            return ' (it is the header of the file: set options = { header = "true" })'
    return ""


def describe_bad_rows(source: Source | None, column: str, samples: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a description of each bad row: the reason, the value at fault, the row as JSON, its location and advice.

    Args:
        source: The source of the rows. None if it is unknown.
        column: The event-time column.
        samples: The bad rows, with the reason (`__bad`), the row as JSON (`row`) and the original record (`text`). Both
            texts may be truncated. `length` is the length of the complete record, `place` the location of the row, and
            `of_file` says whether the location is a file.
    """
    parsed = [_row(bad) for bad in samples]
    names = [file_uri_to_path(bad["place"]) if bad["place"] else "" for bad in samples]
    searches = [
        (source, name if bad["of_file"] else None, _record(bad, row))
        for bad, row, name in zip(samples, parsed, names, strict=True)
    ]
    lines = bad_value_search.find_line_numbers(searches, _MAX_SEARCHED_BYTES)
    described = []
    for bad, row, name, line in zip(samples, parsed, names, lines, strict=True):
        cause, advice = _explain(source, column, bad, row)
        place = f" in {name}" + ("" if line is None else f", line {line:,}") if name else ""
        described.append(f"{bad['__bad']}: {f'{cause}: ' if cause else ''}{bad['row'][:_MAX_SHOWN]}{place}{advice}")
    return described


def _row(bad: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the decoded values of a bad row, without the original record. None if the JSON was truncated."""
    row = bad_value_search.parse_json_object(bad["row"])
    return None if row is None else {k: v for k, v in row.items() if k != CORRUPT}


def _text(bad: Mapping[str, Any]) -> str | None:
    """Return the complete text of a record that could not be decoded. None if the text is missing or truncated."""
    return bad["text"] if bad["length"] is not None and len(bad["text"] or "") == bad["length"] else None


def _record(bad: Mapping[str, Any], row: Mapping[str, Any] | None) -> bad_value_search.Record:
    return (
        bad_value_search.Record(text=_text(bad)) if bad["__bad"] == "undecodable" else bad_value_search.Record(row=row)
    )


def _explain(
    source: Source | None, column: str, bad: Mapping[str, Any], row: Mapping[str, Any] | None
) -> tuple[str, str]:
    """Return two texts, which may be empty: the column and value that make a row bad, and advice.

    Args:
        source: The source of the row. None if it is unknown.
        column: The event-time column.
        bad: A sample, as in `describe_bad_rows`.
        row: The values of the row, by column. None if they are unknown.
    """
    if bad["__bad"] != "undecodable":
        return bad_value_search.describe_event_time(column, row), ""
    if source is None:
        return "", ""
    return bad_value_search.describe_undecodable_row(source, _text(bad), row), decode_hint(
        source, bad["text"], bad["length"]
    )
