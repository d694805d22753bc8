"""Migrate state from earlier formats with pure functions on commit records, which all stores share.

    record in format 1 ── migration 1 ──▶ format 2 ── migration 2 ──▶ …        always forward, without gaps

A store migrates an old record on reading it, and writes the next commit in the current format. Migrations also provide
SQL statements to alter Postgres tables. Files stay unchanged, because each segment stores its schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from slackwater.errors import StateError, Topic

Record = dict[str, Any]  # a commit as parsed JSON
UNBOUNDED = 2**31 - 1  # stands for a limit that the old format did not store
UNNAMED = ("stage 1", "stage 2")  # names for the unnamed stages of format 2


class StateTables(Protocol):
    """The quoted SQL names of the tables of one stage."""

    @property
    def state(self) -> str: ...


@dataclass(frozen=True)
class Migration:
    """A migration from one state format to the next.

    Args:
        description: What is new in the format, as a phrase that follows the format number in messages.
        change: A function that migrates the record of a commit.
        tables: A function that returns the SQL statements to alter the tables of a stage.
    """

    description: str
    change: Callable[[Record], Record]
    tables: Callable[[StateTables], Sequence[str]] = lambda tables: ()


# -- format 2: a state describes its window --------------------------------------------------------------------------

_PLAIN = ("count", "sum", "min", "max", "avg", "first", "last", "stddev", "var")


def migrate_to_2(record: Record) -> Record:
    """Add the field `emission`, and the field `described`, which describes the window in the fingerprint.

    Values that the fingerprint does not contain are assumed and listed in `described["assumed"]`. The next start
    replaces them with values from the config.
    """
    emission = {"updates": False, "retain_us": 0} | record.get("emission", {})
    return {**record, "emission": emission, "described": record.get("described") or _describe_window(record, emission)}


def _for_both_stages(change: Callable[[Record], Record]) -> Callable[[Record], Record]:
    """Return a function that applies `change` to a record and to its second stage, which is in the field `then`."""

    def both(record: Record) -> Record:
        then = record.get("then")
        changed = change(record)
        return changed if then is None else {**changed, "then": {**change(then), "format": 2}}

    return both


def _describe_window(record: Record, emission: Mapping[str, Any]) -> Record:
    """Return a description of the window in the fingerprint of a record, and of the columns that it reads.

    The description is empty for a join, or if the fingerprint lacks settings of an aggregation.
    """
    written = record["fingerprint"]
    if written.get("kind") not in ("tumbling", "hopping", "session"):
        return {}
    lengths = ("duration_ms", "hop_ms", "offset_ms", "gap_ms", "max_session_duration_ms")
    window: Record = {"kind": written["kind"], **{k: written[k] for k in lengths if written.get(k)}}
    if window["kind"] != "hopping":
        window.pop("hop_ms", None)
    keys = [_typed(key) for key in written["keys"]]
    columns, assumed, aggregations = dict(keys), ["lateness_ms"], []
    for name, text in written["aggregations"].items():
        parsed = _aggregation(text)
        if parsed is None:
            return {}
        aggregation, read = parsed
        aggregations.append({**aggregation, "as": name})
        columns |= read
        if "max_distinct_values_per_group" in aggregation:
            assumed.append(f"aggregations.{name}.max_distinct_values_per_group")
    if window["kind"] != "session":
        window["max_groups_per_window"] = UNBOUNDED
        assumed.append("max_groups_per_window")
    if emission["updates"]:
        window["emit"] = "updates"
    if emission["retain_us"]:
        window |= {"late_data": "reopen", "allowed_lateness_ms": emission["retain_us"] // 1000}
    window |= {"group_by": [name for name, _ in keys], "aggregations": aggregations}
    return {"window": window, "columns": columns, "assumed": assumed}


def _typed(text: str) -> tuple[str, str]:
    name, _, type_ = text.rpartition(" ")
    return name, type_


def _aggregation(text: str) -> tuple[Record, dict[str, str]] | None:
    """Parse a text such as "sum amount bigint" into an aggregation and the types of its columns.

    Return None if the text does not contain all settings of the aggregation.
    """
    agg, _, rest = text.partition(" ")
    if (agg, rest) == ("count", "*"):
        return {"agg": agg}, {}
    more: Record = {}
    if agg == "count_distinct":
        if rest.endswith(" exact"):
            rest, more = rest.removesuffix(" exact"), {"mode": "exact", "max_distinct_values_per_group": UNBOUNDED}
        else:
            rest, _, precision = rest.rpartition(" approximate ")
            more = {"hll_precision": int(precision)}
    elif agg not in _PLAIN:
        return None
    name, type_ = _typed(rest)
    return {"agg": agg, "column": name, **more}, {name: type_}


def _row_version(version: int) -> Callable[[StateTables], Sequence[str]]:
    """Return a function for `Migration.tables` that sets the format number of new rows."""
    return lambda tables: [
        f"ALTER TABLE IF EXISTS {tables.state} ALTER COLUMN state_version SET DEFAULT {version}",
    ]


# -- format 3: a commit holds its stages ---------------------------------------------------------------------------------

# fields of stages and commits that formats 2 and 3 share, and counters that belong to the commit in format 3
_OF_STAGE = [
    "fingerprint",
    "emission",
    "described",
    "texts",
    "watermark_us",
    "gone_us",
    "rows_from_us",
    "revised",
    "segments",
    "groups",
    "windows",
    "panes",
    "waiting",
]
_OF_COMMIT = [
    "pipeline",
    "state_id",
    "epoch",
    "committed_us",
    "shards",
    "batch",
    "output",
    "letters",
    "destination",
    "emitted",
    "replayed",
    "tried",
]
_COUNTED_OF_COMMIT = ("replayed", "files_changed")


def migrate_to_3(record: Record) -> Record:
    """Move the stages of a commit into one list. In format 2, the first stage contains the second one as `then`.

    Each stage gets the clocks of its inputs, while sources keep their offsets. The first of two stages gets the name by
    which the second one reads it. A single stage gets the name "transform".
    """
    then = record.get("then")
    name = "transform" if then is None else next(iter(then.get("sources", {})), UNNAMED[0])
    stages = [_stage(name, record)]
    if then is not None:
        stages.append(_stage(next(n for n in reversed(UNNAMED) if n != name), then))
    schemas = record.get("schemas", {})
    sources = {
        n: {"offsets": s.get("offsets"), "columns": schemas.get(n)} for n, s in record.get("sources", {}).items()
    }
    counters = {k: v for k, v in record.get("counters", {}).items() if k in _COUNTED_OF_COMMIT}
    fields = {k: record[k] for k in _OF_COMMIT if k in record}
    return {**fields, "stages": stages, "sources": sources, "counters": counters}


def _stage(name: str, record: Record) -> Record:
    clocks = {n: {k: v for k, v in s.items() if k != "offsets"} for n, s in record.get("sources", {}).items()}
    return {
        "name": name,
        **{k: record[k] for k in _OF_STAGE if k in record},
        "clocks": clocks,
        "emitted_us": record.get("told_us", 0),
        "counters": {k: v for k, v in record.get("counters", {}).items() if k not in _COUNTED_OF_COMMIT},
    }


def with_targets(record: Record) -> Record:
    """Convert a record of an unreleased version, which had one field `destination` instead of `targets`.

    That field described the target of the last stage and the destination of dead letters.
    """
    if "destination" not in record:
        return record
    destination = record["destination"] or {}
    updated = {k: v for k, v in record.items() if k != "destination"}
    last = record["stages"][-1]
    stage = last["name"] if isinstance(last, dict) else last.name
    if "target" in destination and "targets" not in record:
        place = destination["target"] or ()
        target = {"stage": stage, "writer": record["pipeline"], "place": place}
        updated["targets"] = {stage: target | {k: destination[k] for k in _OF_TARGET if k in destination}}
        updated["letters_to"] = destination.get("letters")
    updated["output"] = [{"stage": stage, **o} if isinstance(o, dict) else o for o in record.get("output", ())]
    return updated


_OF_TARGET = ("columns", "upserts")
STEPS: Mapping[int, Migration] = {
    1: Migration(
        "describes each window, so that the state can be read without a config",
        _for_both_stages(migrate_to_2),
        _row_version(2),
    ),
    2: Migration(
        "holds all stages side by side, so that there may be any number of them", migrate_to_3, _row_version(3)
    ),
}
FORMAT = max(STEPS) + 1


# -- running migrations ----------------------------------------------------------------------------------------------


def migration_route(version: int, label: str) -> list[int]:
    """Return the numbers of the migrations that convert format `version` to the current format, in order.

    Raises StateError if a migration is missing or the format is newer than this version. `label` names the state in
    messages.
    """
    versions = list(range(max(version, 0), FORMAT))  # a damaged record may contain any number
    if not 0 < version <= FORMAT or any(v not in STEPS for v in versions):
        raise StateError(
            f"{label} has format {version}, but this version reads formats {min(STEPS)} to {FORMAT}; "
            + (
                "install a newer version of slackwater"
                if version > FORMAT
                else "this format cannot be migrated; restore the state from a backup"
            ),
            Topic.STATE_OF_OTHER_VERSION,
        )
    return versions


def migrate_record(record: Record, version: int, label: str) -> Record:
    """Convert a record to the current format. Raises StateError if it cannot be migrated.

    Args:
        record: The record in its stored format.
        version: The format number of the record.
        label: The name of the record in messages.
    """
    for number in migration_route(version, label):
        try:
            record = {**STEPS[number].change(record), "format": number + 1}
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise StateError(
                f"{label} is damaged: its record does not fit format {number} ({type(error).__name__}); restore it "
                "from a backup",
                Topic.STATE_DAMAGED,
            ) from None
    return record


def migration_statements(version: int, stages: Sequence[StateTables]) -> list[str]:
    """Return the SQL statements that migrate the tables of these stages from format `version` to the current one."""
    return [s for number in range(version, FORMAT) for tables in stages for s in STEPS[number].tables(tables)]
