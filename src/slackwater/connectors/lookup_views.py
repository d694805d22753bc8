"""Load a pipeline's lookups, which its SQL can join by name, and reload them between epochs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slackwater.config.source import Lookup
from slackwater.connectors import spark_connect_support
from slackwater.connectors.files.source import absolute_query
from slackwater.connectors.source import spark_error_reason
from slackwater.connectors.timestamp_parsing import TextTimestampSchema, find_time_zone
from slackwater.errors import StartError, Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass
class LookupViews:
    """The lookups of a pipeline, as temporary views in its Spark session.

    Args:
        session: The Spark session.
        specs: The config of each lookup, by name.
        warn: A function that logs a warning.
        failures: The number of failed refreshes. After a failure, the previous version stays in use.
    """

    session: SparkSession
    specs: Mapping[str, Lookup]
    warn: Callable[[str], None]
    failures: int = 0
    _loaded: dict[str, tuple[float, DataFrame]] = field(default_factory=dict)

    def load(self) -> None:
        """Load every lookup for the first time. Raises StartError if one cannot be loaded."""
        for name, spec in self.specs.items():
            try:
                self._read(name, spec)
            except Exception as error:
                raise StartError(
                    f'lookup "{name}": "{spec.query}" cannot be read ({spark_error_reason(error)}); expected {spec.format} files',
                    Topic.INPUT_MISSING,
                ) from None

    def refresh(self) -> None:
        """Reload lookups that are older than their `refresh_interval_ms`. Failures are counted and logged as warnings."""
        for name, spec in self.specs.items():
            read_at, _ = self._loaded[name]
            if (time.monotonic() - read_at) * 1000 < spec.refresh_interval_ms:
                continue
            try:
                self._read(name, spec)
            except Exception as error:
                self.failures += 1
                self._loaded[name] = (time.monotonic(), self._loaded[name][1])
                self.warn(
                    f'lookup "{name}": refresh {self.failures} failed ({spark_error_reason(error)}); the previous '
                    "version stays in use"
                )

    def _read(self, name: str, spec: Lookup) -> None:
        read = self.session.read.format(spec.format).options(**spec.options)
        if spec.schema_ and spec.format in ("json", "csv"):
            schema = spark_connect_support.parse_ddl_schema(self.session, spec.schema_)
            times = TextTimestampSchema(schema, spec.format, find_time_zone(spec.options, None), spec.options)
            frame = times.convert(read.schema(times.reader_schema).load(absolute_query(spec.query)))
        else:
            frame = (read.schema(spec.schema_) if spec.schema_ else read).load(absolute_query(spec.query))
        # Spark keeps a copy, because the files may be replaced or deleted while this version is in use.
        frame = frame.localCheckpoint(eager=True)
        frame.createOrReplaceTempView(name)
        self._loaded[name] = (time.monotonic(), frame)
