"""The run history of a pipeline: the start, end, outcome and error of each run.

    after the lock is taken        ──▶ save_run(run)              without an end: in progress, or killed
    before the lock is released    ──▶ save_run(run with its end) replaces the first entry

Pipelines do not depend on the history. A damaged history counts as empty, and a run continues even if it cannot
write its entry.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError

from slackwater.state.commit_record_fields import Amount, Time

MOST_RUNS = 50  # older entries are deleted
MOST_TEXT = 500  # characters of an error message
KILLED = "was killed: it recorded no end"  # shown for a run without an end if no runner is active

Outcome = Literal["finished", "stopped", "restarted", "failed"]
Epoch = Annotated[StrictInt, Field(ge=-1, lt=10**18)]


class Run(BaseModel):
    """One run of a pipeline. Times are in microseconds since 1970 UTC.

    If the run is in progress or its process was killed, `ended_us` and all fields after it are None.

    Args:
        started_us: The start time.
        runner: The name of the process.
        epoch: The last committed epoch at the start, or -1.
        ended_us: The end time.
        outcome: How the run ended.
        last_epoch: The last committed epoch at the end, or -1.
        error: The reason for a failure.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    started_us: Amount
    runner: Annotated[str, Field(max_length=MOST_TEXT)]
    epoch: Epoch
    ended_us: Time | None = None
    outcome: Outcome | None = None
    last_epoch: Epoch | None = None
    error: Annotated[str, Field(max_length=MOST_TEXT)] | None = None

    def is_same(self, other: Run) -> bool:
        """Return whether both entries describe the same run."""
        return (self.started_us, self.runner) == (other.started_us, other.runner)


def one_line(text: str) -> str:
    """Return a text as one line of at most MOST_TEXT characters, without invalid Unicode."""
    line = " ".join(text.split()).encode(errors="replace").decode()
    return line if len(line) <= MOST_TEXT else f"{line[: MOST_TEXT - 1]}…"


def add_or_replace_run(runs: Sequence[Run], run: Run) -> tuple[Run, ...]:
    """Add a run to a history, or replace its entry. Return the last MOST_RUNS entries."""
    return (*(r for r in runs if not r.is_same(run)), run)[-MOST_RUNS:]


def encode_runs(runs: Sequence[Run]) -> str:
    """Encode a history as JSON, one run per line."""
    return "".join(run.model_dump_json(exclude_none=True) + "\n" for run in runs)


def parse_runs(lines: Sequence[str | dict[str, Any]]) -> tuple[Run, ...]:
    """Parse runs from lines of JSON or from dictionaries, and return them oldest first. Damaged entries are skipped."""
    runs = list[Run]()
    for line in lines[-10 * MOST_RUNS :]:
        try:
            runs.append(Run.model_validate(json.loads(line) if isinstance(line, str) else line))
        except (ValidationError, ValueError, RecursionError):
            continue
    return tuple(sorted(runs, key=lambda run: run.started_us)[-MOST_RUNS:])
