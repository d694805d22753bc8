"""What every source has in common: the batch it hands to an engine, bad records, and Spark's errors in one line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slackwater.state.protocol import BatchId

CORRUPT = "_corrupt_record"


@dataclass(frozen=True)
class Batch:
    """One micro-batch: its identity (None: a tick), how each source continues after it, and the engine's own handle."""

    id: BatchId | None
    offsets: Mapping[str, Mapping[str, Any] | None]
    payload: Any
    files: int | None = None


def reason(error: BaseException) -> str:
    """The line of a Spark error that says the fact, without plans and stack traces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    if "Python worker" in text or "foreach batch" in text:
        raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b.*:", line)]
        text = raised[-1] if raised else text
    if text.startswith("An error occurred while calling"):
        causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
        text = causes[-1] if causes else lines[1].removeprefix(": ") if len(lines) > 1 else text
        text = re.sub(r"^(?:[\w$]+\.)+", "", text)
    return re.sub(r"\s*SQLSTATE: \w+\s*$", "", text)
