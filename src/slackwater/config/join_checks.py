"""Check a join against the sources and the target of its pipeline. See also `pipeline_checks`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from slackwater.config.connector_description import CONNECTORS
from slackwater.config.message_format import format_value, suggest_word_or_list
from slackwater.config.pipeline_checks import resolve_connection
from slackwater.config.spec_base import Problem, Values
from slackwater.core.humanize import mismatch

if TYPE_CHECKING:
    from slackwater.config.join import Join
    from slackwater.config.target import Target


def _join(values: Values) -> Join | None:
    transform = values.get("transform")
    return None if transform is None or transform.window is not None else transform.join


def check_join(values: Values) -> Iterator[Problem]:
    """Yield a problem for each nonexistent source that the join names, and each source that it does not read."""
    join, sources = _join(values), values.get("sources", ())
    if join is None or not sources:
        return
    if len(sources) == 1:
        yield "sources", mismatch(1, "2: one for left_source and one for right_source")
        return
    names = [s.name for s in sources if s.name]
    named_sources = {
        key: getattr(join, key) for key in ("left_source", "right_source") if getattr(join, key) is not None
    }
    unknown = {key: name for key, name in named_sources.items() if name not in names}
    undecided = bool(unknown) or len(set(named_sources.values())) < 2 or len(names) < len(sources)
    for key, name in unknown.items():
        if len(names) == len(sources):
            yield (
                f"{join.CONFIG_PATH}.{key}",
                f"found {format_value(name)}, which is not a source{suggest_word_or_list(name, names)}",
            )
    for i, source in enumerate(sources):
        if not undecided and source.name not in named_sources.values():
            yield (
                f"sources[{i}]",
                f"{format_value(source.name)} is not a side of the join; remove it, or read it in another pipeline",
            )


def check_append_only(values: Values, path: str = "target") -> Iterator[Problem]:
    """Yield a problem for each target with mode = "merge" that receives joined rows, or rows of a stage with only SQL.

    Such rows have no identity and cannot replace others.
    """
    target: Target | None = values.get("target")
    transform = values.get("transform")
    if transform is None or transform.window is not None or target is None or target.mode != "merge":
        return
    step = transform.stateful
    if step is None and not transform.is_stateless:
        return
    row_text, stage_text = ("joined rows", "a join") if _join(values) is not None else ("rows of SQL alone", "them")
    if step is not None and step.table != "join":
        row_text, stage_text = f"rows of a {step.table}", "them"
    connection = resolve_connection(target.connection, values.get("connections", {}))
    if connection is not None and "mode" in CONNECTORS[connection.kind].target_keys:
        yield (
            f"{path}.mode",
            f'"merge" replaces rows with the same identity, but {row_text} have no identity; use "append" (the default for {stage_text})',
        )
