"""The options of a run, as `slackwater.run` accepts them, and the positions at which sources start."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slackwater.config.connector_description import CONNECTORS, StartPosition
from slackwater.config.error_text import suggest_or_list_words
from slackwater.config.pipeline import Pipeline, check_run_flags, resolve_connection
from slackwater.config.source import Source
from slackwater.core.humanize import mismatch
from slackwater.engine.observer import Observer, Status
from slackwater.errors import ConfigError
from slackwater.runner import existing_output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class RunOptions:
    """The options of a run; see `slackwater.run`.

    Args:
        available_now: End when all input that exists now has been processed.
        flush: Close all open windows at the end.
        spark: The Spark session to use; None starts one.
        on_status: Called with the status after each commit.
        on_notice: Called with the level and the text of each line about the run; None logs the lines.
        stop: An event that ends the run after the epoch in progress.
        rebuild: Start over with a new state. Maps sources to the positions where they begin; None continues the state.
        former_output: What to do with the rows of an earlier state in an append-only target: "aside", "keep" or None.
        observers: Objects that are notified during the run.
    """

    available_now: bool = False
    flush: bool = False
    spark: SparkSession | None = None
    on_status: Callable[[Status], None] | None = None
    on_notice: Callable[[str, str], None] | None = None
    stop: threading.Event | None = None
    rebuild: Mapping[str, Any] | None = None
    former_output: str | None = None
    observers: Sequence[Observer] = ()

    @property
    def starts_over(self) -> bool:
        return self.rebuild is not None

    def check(self) -> None:
        """Raise ConfigError for options that cannot be combined, and for invalid values."""
        check_run_flags(self.available_now, self.flush)
        if self.former_output not in (None, *existing_output.CHOICES):
            raise ConfigError(["former_output: " + mismatch(f'"{self.former_output}"', '"aside" or "keep"')])

    def check_background(self) -> None:
        """Raise ConfigError for options that a run in the background does not support."""
        check_run_flags(self.available_now, self.flush)
        if self.stop is not None:
            raise ConfigError(
                ["stop: applies only to a run in the foreground; stop a run in the background with its handle"]
            )


# -- start positions -----------------------------------------------------------------------------------------------------


WORDS = ("earliest", "latest")
_SHAPE = 'earliest, latest, or JSON per source such as {"clicks": {"topic": {"0": 42}}} or {"clicks": "latest"}'


def parse_offsets(text: str | None) -> dict[str, Any]:
    """Parse the value of --from into positions by source. The key "*" stands for all sources.

    Return {} for None, so that the positions in the config apply. Raises ConfigError for any other text.
    """
    if text is None:
        return {}
    if text in WORDS:
        return {"*": text}
    try:
        positions = json.loads(text)
    except ValueError:
        positions = None
    if not isinstance(positions, dict) or not all(v in WORDS or isinstance(v, dict) for v in positions.values()):
        raise ConfigError(["--from: " + mismatch(text, _SHAPE)])
    return positions


def set_starting_offsets(pipeline: Pipeline, positions: Mapping[str, Any]) -> Pipeline:
    """Return the pipeline with these start positions for its sources.

    Raises ConfigError if a source does not exist, or if it cannot start at its position.
    """
    names = [s.name for s in pipeline.sources]
    problems = [
        f'--from: there is no source "{n}"{suggest_or_list_words(n, names)}'
        for n in positions
        if n not in (*names, "*")
    ]
    sources = [
        _with_position(pipeline, s, positions.get(s.name, positions.get("*")), problems) for s in pipeline.sources
    ]
    if problems:
        raise ConfigError(problems)
    return pipeline.model_copy(update={"sources": tuple(sources)})


def _with_position(pipeline: Pipeline, source: Source, position: Any, problems: list[str]) -> Source:
    begins = _start_position(pipeline, source)
    if position is None or (position == "earliest" and begins.from_first):
        return source
    if begins.default is None or not (begins.offsets or position in WORDS):
        problems.append(
            f'--from: source "{source.name}" {begins.default_text} and cannot begin elsewhere; remove it from --from'
        )
        return source
    try:
        checked = Source.KEYS["starting_offsets"].parse(position)
    except Exception as error:
        problems.append(f'--from: source "{source.name}": expected offsets per topic and partition ({error})')
        return source
    return source.model_copy(update={"starting_offsets": checked, "starting_version": None})


def _start_position(pipeline: Pipeline, source: Source) -> StartPosition:
    connection = resolve_connection(source.connection, pipeline.connections)
    return StartPosition() if connection is None else CONNECTORS[connection.kind].start


def describe_starting_offsets(pipeline: Pipeline) -> str:
    """Describe the start position of each source."""
    return ", ".join(f"{s.name} {describe_source_start(pipeline, s)}" for s in pipeline.sources)


def describe_source_start(pipeline: Pipeline, source: Source) -> str:
    """Describe the start position of a source that has never been read."""
    begins = _start_position(pipeline, source)
    if begins.default is None:
        return begins.position_text
    if source.starting_version is not None:
        return f"at version {source.starting_version}"
    position = source.starting_offsets or begins.default
    return f"at {position}" if isinstance(position, str) else f"at {json.dumps(position)}"
