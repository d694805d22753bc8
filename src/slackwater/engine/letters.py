"""Dead letters: what is kept of a row that could not be used, with its original bytes where the source has them."""

from __future__ import annotations

from collections.abc import Sequence

from slackwater.sources.base import CORRUPT
from slackwater.targets.base import LETTER
from slackwater.windows.aggregations import quote


def letter_columns(columns: Sequence[str], pipeline: str, source: str, epoch: int) -> list[str]:
    """Spark SQL over a source's rows with `__bad` and `_event_ts`: the columns of a letter, in order."""
    there = set(columns)
    plain = [c for c in columns if c not in ("__bad", "_event_ts", CORRUPT) and not _is_meta(c)]
    row = f"to_json(struct({', '.join(map(quote, plain))}))" if plain else "NULL"
    text = f"coalesce({CORRUPT}, {row})" if CORRUPT in there else row
    found = {
        "reason": "__bad",
        "pipeline": _text(pipeline),
        "source": _text(source),
        "epoch": f"{epoch}L",
        "topic": "_topic" if "_topic" in there else "NULL",
        "partition": "_partition" if "_partition" in there else "NULL",
        "offset": "_offset" if "_offset" in there else "NULL",
        "key": "_key" if "_key" in there else "NULL",
        "value": "_value" if "_value" in there else f"CAST({text} AS BINARY)",
        "headers": "to_json(_headers)" if "_headers" in there else "NULL",
        "event_time": "_event_ts",
        "file": "NULL" if "_topic" in there else "nullif(input_file_name(), '')",
    }
    return [f"CAST({found[f.name]} AS {f.type}) AS {quote(f.name)}" for f in LETTER]


def _is_meta(column: str) -> bool:
    return column in ("_topic", "_partition", "_offset", "_key", "_value", "_headers")


def _text(value: str) -> str:
    """A string as a Spark SQL literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
