"""OpenLineage run events: one OpenLineage run per start, with START, then RUNNING after commits, then COMPLETE or FAIL.

    commits ─▶ summed while an event is being sent ─▶ one event ─▶ the client's transport

Every commit is in exactly one event. Commits made while an event is being sent, or within a second of it, share the
next event. Commits that could not be sent become part of a later event. Column lineage is omitted: it would have to be
derived through SQL, aggregation and state.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import attr
from openlineage.client import OpenLineageClient, event_v2
from openlineage.client import uuid as uuids
from openlineage.client.facet_v2 import (
    error_message_run,
    input_statistics_input_dataset,
    job_type_job,
    output_statistics_output_dataset,
    processing_engine_run,
    schema_dataset,
)
from openlineage.client.generated.base import RunFacet
from openlineage.client.transport.console import ConsoleTransport

from slackwater.config.connector_description import CONNECTORS, Dataset
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.source import Lookup, Source
from slackwater.config.target import Target
from slackwater.core.dead_letter_columns import LETTER
from slackwater.core.schema import Field
from slackwater.engine.observer import Observer, RunSchema, Status
from slackwater.errors import StartError, Topic
from slackwater.observe.outage_reporter import OutageReporter, error_reason
from slackwater.secret_masking import mask_secrets, remember_secret, remember_url

PRODUCER = f"urn:slackwater:{version('slackwater')}"
PAUSE_SECONDS = 1.0  # minimum time between two events of a run
LAST_SECONDS = 5.0  # time limit for the last events of a run
AWAY_SECONDS = 0.2  # time limit for the last events if the latest attempt failed
_LOGGERS = ("urllib3.connectionpool", "openlineage.client.transport.http")
_NAMESPACE = "OPENLINEAGE_NAMESPACE"


@attr.define
class CommitsRunFacet(RunFacet):
    """The commits in an event, and the watermark after them (µs UTC)."""

    firstEpoch: int  # noqa: N815
    lastEpoch: int  # noqa: N815
    watermark: int | None = None

    @staticmethod
    def _get_schema() -> str:
        return "urn:slackwater:openlineage:CommitsRunFacet:1"


@dataclass
class _Commits:
    """The sum of the commits that no event contains yet. `read` counts rows by source, and `written` by target."""

    first: int
    last: int
    watermark_us: int | None
    read: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)  # by target
    letters: int = 0

    def add(self, later: _Commits) -> _Commits:
        read, written = _sum(self.read, later.read), _sum(self.written, later.written)
        return _Commits(self.first, later.last, later.watermark_us, read, written, self.letters + later.letters)


def _sum(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}}


class OpenLineage(Observer):
    """An observer that sends OpenLineage events from a separate thread."""

    def __init__(self, notice: Callable[[str, str], None]) -> None:
        self._client = _client()
        self._outage = OutageReporter(
            notice, f"sending lineage events ({self._client.transport.kind})", "the pipeline continues without lineage"
        )
        self._run = event_v2.Run(str(uuids.generate_new_uuid()))
        self._namespace = os.environ.get(_NAMESPACE) or "slackwater"
        self._pipeline: Pipeline
        self._columns = RunSchema({}, {})
        self._before: Status | None = None
        self._commits: _Commits | None = None
        self._wake, self._begun_at, self._end = threading.Condition(), "", list[event_v2.RunState]()
        self._error = ""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="openlineage", daemon=True)
        notice("info", f"OpenLineage events by {self._client.transport.kind}, run {self._run.runId}")

    # -- callbacks of the run ---------------------------------------------------------------------------------------

    def on_start(self, pipeline: Pipeline) -> None:
        self._pipeline, self._begun_at = pipeline, _now()
        self._thread.start()
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self._is_from_other_thread)

    def _is_from_other_thread(self, record: logging.LogRecord) -> bool:
        """Return False for log records from the sending thread, because `_outage` already reports its failures."""
        return record.thread != self._thread.ident

    def on_schema(self, columns: RunSchema) -> None:
        self._columns = columns

    def on_commit(self, status: Status) -> None:
        previous, self._before = self._before, status
        if not status.phases:  # the status of a restart or of changed files, not of an epoch
            return
        previous_rows = {} if previous is None else {s.name: s.rows for s in previous.sources}
        letters = 0 if previous is None else sum(previous.counters.letters.values())
        new = _Commits(
            status.epoch,
            status.epoch,
            status.watermark_us,
            {s.name: s.rows - previous_rows.get(s.name, 0) for s in status.sources},
            dict(status.written),
            sum(status.counters.letters.values()) - letters,
        )
        with self._wake:
            self._commits = new if self._commits is None else self._commits.add(new)
            self._wake.notify()

    def on_end(self, error: BaseException | None) -> None:
        self._error = "" if error is None else mask_secrets(str(error) or type(error).__name__)
        with self._wake:
            self._end.append(event_v2.RunState.COMPLETE if error is None else event_v2.RunState.FAIL)
            self._wake.notify()
        self._ending.set()
        self._thread.join(AWAY_SECONDS if self._outage.is_failing else LAST_SECONDS)
        if not self._thread.is_alive():
            self._client.close(0.2)
            for name in _LOGGERS:
                logging.getLogger(name).removeFilter(self._is_from_other_thread)

    # -- events -----------------------------------------------------------------------------------------------------

    def _send_all(self) -> None:
        started = False
        while True:
            started = started or self._send(event_v2.RunState.START, None, self._begun_at)
            with self._wake:
                self._wake.wait_for(lambda: self._commits is not None or self._end)
                commits, self._commits = self._commits, None
                end = self._end and not commits
            if commits is not None and not (started and self._send(event_v2.RunState.RUNNING, commits)):
                with self._wake:
                    self._commits = commits if self._commits is None else commits.add(self._commits)
            if end or (self._end and self._outage.is_failing):
                self._send(self._end[0], self._commits)
                return
            self._ending.wait(PAUSE_SECONDS)

    def _send(self, state: event_v2.RunState, commits: _Commits | None, event_time: str = "") -> bool:
        try:
            self._client.emit(self._event(state, commits, event_time or _now()))
        except Exception as error:
            self._outage.record_failure(error)
            return False
        self._outage.record_success()
        return True

    def _event(self, state: event_v2.RunState, commits: _Commits | None, event_time: str) -> event_v2.RunEvent:
        facets: dict[str, Any] = {
            "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
                version("slackwater"), "slackwater", producer=PRODUCER
            )
        }
        if commits is not None:
            facets["slackwater_commits"] = CommitsRunFacet(
                commits.first, commits.last, commits.watermark_us, producer=PRODUCER
            )
        if state is event_v2.RunState.FAIL:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(self._error, "PYTHON", producer=PRODUCER)
        kind = job_type_job.JobTypeJobFacet("STREAMING", "SLACKWATER", "JOB", producer=PRODUCER)
        return event_v2.RunEvent(
            eventTime=event_time,
            producer=PRODUCER,
            run=event_v2.Run(self._run.runId, facets),
            job=event_v2.Job(self._namespace, self._pipeline.name, {"jobType": kind}),
            eventType=state,
            inputs=self._inputs(commits),
            outputs=self._outputs(commits),
        )

    def _inputs(self, commits: _Commits | None) -> list[event_v2.InputDataset]:
        inputs = []
        for source in self._pipeline.sources:
            datasets = source_datasets(self._pipeline, source)
            facets = _schema(self._columns.sources.get(source.name, ()))
            statistics: dict[str, Any] = {}
            if commits is not None and len(datasets) == 1:  # for several topics, only the sum is known
                rows = commits.read.get(source.name, 0)
                statistics["inputStatistics"] = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
                    rowCount=rows, producer=PRODUCER
                )
            inputs += [
                event_v2.InputDataset(*dataset, inputFacets=statistics, facets=dict(facets)) for dataset in datasets
            ]
        for lookup in self._pipeline.lookups.values():
            inputs += [event_v2.InputDataset(*dataset) for dataset in source_datasets(self._pipeline, lookup)]
        return inputs

    def _outputs(self, commits: _Commits | None) -> list[event_v2.OutputDataset]:
        outputs = []
        written = {} if commits is None else commits.written
        targets: list[tuple[Target | None, Sequence[Field], int | None]] = [
            (
                target_pipeline.target,
                self._columns.output.get(name, ()),
                None if commits is None else written.get(name, 0),
            )
            for name, target_pipeline in self._pipeline.per_target.items()
        ]
        targets.append((self._pipeline.dead_letter, LETTER, None if commits is None else commits.letters))
        for target, fields, rows in targets:
            dataset = target_dataset(self._pipeline, target)
            if dataset is None:
                continue
            statistics: dict[str, Any] = {}
            if rows is not None:
                statistics["outputStatistics"] = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                    rowCount=rows, producer=PRODUCER
                )
            outputs.append(event_v2.OutputDataset(*dataset, outputFacets=statistics, facets=_schema(fields)))
        return outputs


def _schema(fields: Sequence[Field]) -> dict[str, Any]:
    columns = [schema_dataset.SchemaDatasetFacetFields(f.name, f.type) for f in fields]
    return {"schema": schema_dataset.SchemaDatasetFacet(columns, producer=PRODUCER)} if columns else {}


def _client() -> OpenLineageClient:
    """Create a client from OpenLineage's own configuration. Raises StartError if it is invalid or incomplete."""
    _remember_keys()
    log = logging.getLogger("openlineage.client.client")
    log.addFilter(_not_the_console)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            client = OpenLineageClient()
    except Exception as error:
        raise StartError(
            f"--openlineage: the client configuration is invalid: {mask_secrets(error_reason(error))}",
            Topic.REPORT_CONFIG,
        ) from None
    finally:
        log.removeFilter(_not_the_console)
    if isinstance(client.transport, ConsoleTransport) and not (client.config.transport or {}).get("type"):
        raise StartError(
            "--openlineage: no destination for events is set; set OPENLINEAGE_URL, or set OPENLINEAGE_CONFIG to a "
            "file that configures a transport (openlineage.yml)",
            Topic.REPORT_CONFIG,
        )
    return client


def _remember_keys() -> None:
    for name, value in os.environ.items():
        if not name.startswith("OPENLINEAGE"):
            continue
        remember_url(value)
        if any(word in name for word in ("KEY", "AUTH", "TOKEN", "PASSWORD")):
            remember_secret(value)
            for part in re.findall(r':\s*"([^"]+)"', value):  # settings as JSON
                remember_secret(part)


def _not_the_console(record: logging.LogRecord) -> bool:
    return "will print events to console" not in record.getMessage()


def _now() -> str:
    return datetime.now(UTC).isoformat()


# -- data sets -----------------------------------------------------------------------------------------------------------


def source_datasets(pipeline: Pipeline, source: Source | Lookup) -> list[Dataset]:
    """Return the datasets that a source reads, one per topic; none for a DataFrame."""
    connection = resolve_connection(source.connection, pipeline.connections)
    if connection is None or source.query is None:
        return []
    return [_safe(dataset) for dataset in CONNECTORS[connection.kind].source_datasets(connection, source.query)]


def target_dataset(pipeline: Pipeline, target: Target | None) -> Dataset | None:
    """Return the dataset that a target writes; None if the target is not a dataset, such as the console."""
    connection = None if target is None else resolve_connection(target.connection, pipeline.connections)
    if target is None or connection is None:
        return None
    dataset = CONNECTORS[connection.kind].target_dataset(connection, target)
    return None if dataset is None else _safe(dataset)


def _safe(dataset: Dataset) -> Dataset:
    return mask_secrets(dataset[0]), mask_secrets(dataset[1])
