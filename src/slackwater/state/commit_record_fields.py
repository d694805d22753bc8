"""Types of the fields in commit records: numbers, names, counters, fingerprints and descriptions.

When a record is read, each value is checked against its type. A record can be invalid even if its checksum is correct,
because another program may have written it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetPydanticSchema,
    StrictBool,
    StrictInt,
    Tag,
    ValidationError,
    with_config,
)
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

LIMIT = 1 << 62  # largest time in microseconds; values that represent infinity are smaller
MAX_DEPTH = 40  # largest depth of nested lists and mappings
CLOSED = ConfigDict(extra="forbid")

Time = Annotated[StrictInt, Field(ge=-LIMIT, le=LIMIT)]  # microseconds
Duration = Annotated[StrictInt, Field(ge=0, le=LIMIT)]
Amount = Annotated[StrictInt, Field(ge=0, lt=1 << 63)]
# name of a file or a list, or token of staged rows
Name = Annotated[str, Field(pattern=r"^$|^([a-z]+/)?[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=255)]
Id = Annotated[str, Field(pattern=r"^[\w-]*$", max_length=64)]
PaneStart = Annotated[int, Field(ge=-LIMIT, le=LIMIT)]  # a time as a mapping key, which JSON stores as text
SegmentKind = Annotated[str, Field(pattern=r"^((left|right)[+-]?)?$")]
Side = Literal["left", "right"]


class CommitModel(BaseModel):
    """Base class for all parts of a commit record. Instances are immutable, and unknown fields are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class RecordError(ValueError):
    """Raised when a commit record contains an invalid value. The message names the field."""


def _check_type(text: str) -> str:
    from slackwater.core import schema  # not at the top: some commands need no state, and thus no Polars

    if not schema.is_column_type(text):
        raise ValueError("it is not a column type")
    return text


def _check_column(text: str) -> str:
    from slackwater.core import schema

    try:
        schema.parse_field(text)
    except TypeError:
        raise ValueError("it is not the name and the type of a column") from None
    return text


ColumnType = Annotated[str, AfterValidator(_check_type)]
Column = Annotated[str, AfterValidator(_check_column)]


def check_json(value: Any, path: tuple[str, ...] = ()) -> None:
    """Raise RecordError unless a value is JSON with finite numbers, 64-bit integers and valid Unicode.

    `path`: the path of the value in the record.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            check_json(key, path)
            check_json(item, (*path, key))
        problem = None
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            check_json(item, (*path, str(number)))
        problem = None
    elif isinstance(value, str):
        problem = None if _is_encodable(value) else "a text that is not valid Unicode"
    elif isinstance(value, float):
        problem = None if math.isfinite(value) else f"{value}, expected a finite number"
    elif isinstance(value, int):  # includes bool
        problem = None if abs(value) < 1 << 64 else "a number with more than 64 bits"
    else:
        problem = None if value is None else f"a {type(value).__name__}"
    if len(path) > MAX_DEPTH:
        problem = f"more than {MAX_DEPTH} nested tables and lists"
    if problem is not None:
        raise RecordError(f"1 field does not fit ({_field_path(path)}found {problem})")


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# -- counters ------------------------------------------------------------------------------------------------------------


@with_config(CLOSED)
class LatenessCounters(TypedDict, total=False):
    """A histogram of how late rows were, in stored form; see `core.lateness_histogram`."""

    rows: Amount
    late: dict[Annotated[str, Field(pattern=r"^([0-9]|[1-3][0-9]|4[0-5]|never)$")], Amount]
    of_us: dict[str, Time]


@with_config(CLOSED)
class CounterTable(TypedDict, total=False):
    """The counters of a stage or a pipeline in a commit.

    `engine.observer.Counters` explains the counters. A new counter must be declared in both classes.
    """

    rows_in: Amount
    rows_sql: Amount
    rows_used: Amount
    rows_bad: Amount
    rows_refused: Amount
    rows_duplicate: Amount
    rows_lost: Amount
    files_changed: Amount
    late_windows: Amount
    replayed: Amount
    replayed_late: Amount
    overflows: Amount
    late_between_stages: Amount
    rows_partly_late: Amount
    late: dict[str, Amount]
    emitted: dict[str, Amount]
    letters: dict[str, Amount]
    sides: dict[Side, dict[str, Amount]]
    lateness: LatenessCounters
    targets: dict[str, Amount]
    spent_us: dict[str, Amount]


# -- fingerprints --------------------------------------------------------------------------------------------------------

Lasting = Annotated[StrictInt, Field(ge=0, le=LIMIT // 1000)]  # milliseconds


@with_config(CLOSED)
class WindowFingerprint(TypedDict):
    """The settings of a window that its state rows depend on."""

    kind: Literal["tumbling", "hopping", "session"]
    duration_ms: Lasting | None
    hop_ms: Lasting | None
    offset_ms: Annotated[StrictInt, Field(ge=-LIMIT // 1000, le=LIMIT // 1000)]
    gap_ms: Lasting | str | None  # a string is an expression, evaluated per row
    max_session_duration_ms: Lasting | None
    keys: list[Column]
    aggregations: dict[str, str]


OfSides = Annotated[list[list[Column]], Field(min_length=2, max_length=2)]


@with_config(CLOSED)
class JoinFingerprint(TypedDict):
    """The settings of a join that its buffered rows depend on. `keys` and `columns` list the left side first."""

    kind: Literal["join"]
    outer: list[Side]
    bounds_us: Annotated[list[Time], Field(min_length=2, max_length=2)]
    keys: OfSides
    columns: OfSides


@with_config(ConfigDict(extra="allow"))
class OtherFingerprint(TypedDict, total=False):
    """The settings of a keyed or stateless stage that its state depends on."""

    kind: str
    keys: list[Column]


def _family(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if kind in ("tumbling", "hopping", "session"):
        return "<window>"
    return "<join>" if kind == "join" else "<other>"


_Fingerprint = Annotated[
    Annotated[WindowFingerprint, Tag("<window>")]
    | Annotated[JoinFingerprint, Tag("<join>")]
    | Annotated[OtherFingerprint, Tag("<other>")],
    Discriminator(_family),
]

# -- emission and description of a stage ---------------------------------------------------------------------------------


@with_config(CLOSED)
class EmissionTable(TypedDict, total=False):
    """The emission settings that the state of a stage depends on."""

    updates: StrictBool
    retain_us: Duration


@with_config(ConfigDict(extra="allow"))
class WindowDescription(TypedDict, total=False):
    """The config of a window, without its SQL."""

    aggregations: list[dict[str, Any]]


@with_config(ConfigDict(extra="allow"))
class DescriptionTable(TypedDict, total=False):
    """The config of a stage without its SQL, and the types of the columns that the stage reads.

    `assumed`: names of settings whose values were assumed, because an older format did not store them.
    """

    window: WindowDescription
    join: dict[str, Any]
    step: dict[str, Any]
    columns: dict[str, ColumnType]
    assumed: list[str]


def _checked_as(shape: Any) -> Any:
    """Return an annotation with which Pydantic validates a mapping against `shape`, while type checkers ignore it."""
    return GetPydanticSchema(lambda _, handler: handler(shape))


Counted = Annotated[Mapping[str, Any], _checked_as(CounterTable)]
Fingerprint = Annotated[Mapping[str, Any], _checked_as(_Fingerprint)]
Emission = Annotated[Mapping[str, Any], _checked_as(EmissionTable)]
Description = Annotated[Mapping[str, Any], _checked_as(DescriptionTable)]

# -- messages ------------------------------------------------------------------------------------------------------------

_EXPECTED = {
    "int_type": "a whole number",
    "bool_type": "true or false",
    "string_type": "a text",
    "string_unicode": "valid Unicode",
    "dict_type": "a table",
    "mapping_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "list_type": "a list",
    "tuple_type": "a list",
    "greater_than_equal": "a number of at least {ge}",
    "less_than_equal": "a number of at most {le}",
    "less_than": "a number below {lt}",
    "literal_error": "{expected}",
    "string_pattern_mismatch": "a text of the form {pattern}",
    "string_too_long": "a text of at most {max_length} characters",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "missing": "a value",
    "extra_forbidden": "no such field (this version does not know it)",
}


def describe_invalid_field(error: ValidationError) -> str:
    """Return a phrase about the first invalid field of a record: its path, its value and the expected value."""
    first, count = error.errors(include_url=False)[0], error.error_count()
    path = _field_path([str(part) for part in first["loc"] if not str(part).startswith("<")])
    value = "nothing" if first["type"] == "missing" else _format_value(first["input"])
    template = _EXPECTED.get(first["type"])
    message = str(first["msg"]).removeprefix("Value error, ")[:200]
    expected = f"expected {template.format(**first.get('ctx', {}))}" if template else message
    fields = f"{count} field{'s do' if count > 1 else ' does'} not fit"
    return " ".join(f"{fields} ({path}found {value}, {expected})".split())


def _field_path(path: Sequence[str]) -> str:
    """Format the path of a field as the prefix of a message; empty for the whole record."""
    text = " ".join(".".join(path)[:200].split())
    return f"{text.encode(errors='replace').decode()}: " if path else ""


def _format_value(value: Any) -> str:
    """Format a value as one short line for a message."""
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    text = json.dumps(value, default=lambda other: type(other).__name__)
    return text if len(text) <= 60 else f"{text[:60]}…"
