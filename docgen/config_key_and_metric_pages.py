"""The page on keys of a config, and the page on metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from docgen.error_and_warning_sources import ROOT
from docgen.markdown import MADE, escape_table_cell, format_inline_code
from slackwater.config.json_schema import table_keys
from slackwater.config.pipeline import Pipeline
from slackwater.config.spec_base import find_duration_keys, iterate_specs
from slackwater.config.stage import Transform
from slackwater.engine.epoch_driver import PHASES
from slackwater.engine.observer import BufferCounts, Counters, StageStatus, Status
from slackwater.metrics import PREFIX, Metrics
from slackwater.state.commit import LETTERS

TABLES = {
    "Pipeline": "",
    "Connection": "[connections.NAME]",
    "Source": "[[sources]]",
    "Transform": "[transform]",
    "Lookup": "[transform.lookups.NAME]",
    "Window": "[transform.window]",
    "Aggregation": "[[transform.window.aggregations]]",
    "Join": "[transform.join]",
    **{step.__name__: f"[{step.CONFIG_PATH}]" for step in Transform.STEPS.values()},
    "Stage": "[[stages]]",
    "Target": "[target] and [dead_letter]",
    "StateStore": "[state_store]",
}


_ALSO_REQUIRED = {"Connection": ("kind",), "Source": ("connection", "query")}  # by rules between keys


def build_config_keys_page() -> str:
    schema = json.loads((ROOT / "src" / "slackwater" / "config" / "slackwater.schema.json").read_text())
    lines = [
        "# Configuration keys",
        "",
        MADE,
        "",
        "This page lists all keys of a config by table, with their values and defaults. [Configuration](configuration.md) describes how they fit",
        "together. The JSON Schema for [editors](write-config.md#in-an-editor) has the same content. A string may also be `${NAME}` or",
        "`${NAME:-default}`, which is read from the environment. A duration is a string with a unit (`250ms`, `30s`, `5m`, `2h`, `30d`). Each",
        "duration key also exists with the suffix `_ms`, as a number of milliseconds: `gap_ms = 1800000`. The default column says",
        '"required" if the key has to be set. If the column is empty, the key is unset by default, or its meaning states the default.',
    ]
    lines += ["", *(f"- [{format_table_heading(table)}](#{format_heading_anchor(table)})" for table in TABLES.values())]
    by_name = {spec.__name__: spec for spec in iterate_specs(Pipeline)}
    for name, table in TABLES.items():
        spec = by_name[name]
        shape = schema if name == "Pipeline" else schema["$defs"][name.lower()]
        lines += [
            "",
            f"## {format_table_heading(table)}",
            "",
            "| key | values | default | meaning |",
            "|---|---|---|---|",
        ]
        units, keys = find_duration_keys(spec), table_keys(spec)
        required = {*spec.REQUIRED, *_ALSO_REQUIRED.get(name, ())}
        for key, key_schema in shape["properties"].items():
            if key in units.values():
                continue
            text = key_schema["description"] if key_schema.get("deprecated") else keys[units.get(key, key)].text
            default = format_inline_code(json.dumps(key_schema["default"])) if "default" in key_schema else ""
            if units.get(key, key) in required:
                default = "required"
            values = "a number of milliseconds" if key.endswith("_ms") else _describe_values(key_schema)
            lines.append(f"| `{key}` | {values} | {default} | {escape_table_cell(text)} |")
        page, _, section = spec.DOC_LINK.removeprefix("docs/").partition("#")
        lines += ["", f"See also [{page.removesuffix('.md').capitalize()}]({page}#{section})."]
    return "\n".join(lines) + "\n"


def format_table_heading(table: str) -> str:
    """Return the heading of an entry of TABLES: the names of its tables as code."""
    return " and ".join(format_inline_code(name) for name in table.split(" and ")) if table else "Top-level keys"


def format_heading_anchor(table: str) -> str:
    """Return the anchor of the heading of a table, as code hosts generate it."""
    return re.sub(r"[^\w\- ]", "", format_table_heading(table).lower()).replace(" ", "-")


def _describe_values(key_schema: Mapping[str, Any]) -> str:
    if "$ref" in key_schema:
        name = key_schema["$ref"].rpartition("/")[2]
        return "a duration" if name.startswith("duration") else "" if name == "env" else "a table"
    if "anyOf" in key_schema:
        return " or ".join(dict.fromkeys(v for part in key_schema["anyOf"] if (v := _describe_values(part))))
    if "enum" in key_schema:
        return ", ".join(format_inline_code(str(v)) for v in key_schema["enum"])
    if key_schema.get("type") == "array":
        return f"a list of {'tables' if '$ref' in key_schema.get('items', {}) else 'strings'}"
    kind = key_schema.get("type")
    kinds = [kind] if isinstance(kind, str) else list(kind or [])
    return " or ".join(
        {
            "string": "a string",
            "integer": "a whole number",
            "number": "a number",
            "boolean": "`true`, `false`",
            "object": "a table",
        }.get(k, k)
        for k in kinds
    )


_NO_TIME = dict.fromkeys(
    ("rows", "emitted", "late", "seconds", "clock_us", "windows_active", "groups", "state_bytes"), 0
)
_OF_A_JOIN = Status(
    pipeline="p",
    window_kind="join",
    late_policy="drop",
    epoch=0,
    phases={},
    watermark_us=None,
    sources=(),
    counters=Counters(),
    stages=(
        StageStatus("s", "join", None, 0, 0, 0, 0, Counters(), {"left": BufferCounts(0), "right": BufferCounts(0)}),
    ),
    **_NO_TIME,
)

_PHASES = {
    "plan": "decides what to read",
    "read": "prepares the tasks of the shards",
    "ingest": "reads the rows, runs the SQL and aggregates",
    "emit": "computes the results that are due",
    "commit": "commits the epoch",
    "write": "writes to the targets",
    "note": "records that the output is published",
}
assert tuple(_PHASES) == PHASES

_LABEL_VALUES = {
    "cause": "why a row is late: `lateness`, `idle` (its source or partition was idle), `flush` (a flush had closed its window)",
    "kind": "the kind of the last stage: `tumbling`, `hopping`, `session`, `join`, `dedup`, `keyed`, `rows` (SQL alone)",
    "le": "seconds of additional lateness, and `+Inf`; the counts are cumulative, as in a histogram",
    "phase": f"{', '.join(f'{format_inline_code(p)} ({text})' for p, text in _PHASES.items())}, and `total` for the entire epoch",
    "policy": "the `late_data` of the first stage: `drop`, `dlq`, `reopen`, `standalone`",
    "reason": "in `windows_emitted_total`: the [`_emit_reason`](corrections.md#the-columns-of-emit_metadata) of windows, `match` or `unmatched` "
    "for joins, otherwise `dedup`, `keyed` or `row`; in `letters_total`: why the row is a [dead letter](dead-letters.md)",
    "side": "`left`, `right`",
    "source": "the name of a source, or `_global`",
    "stage": "the name of a stage",
    "target": f"the name of a target, or {format_inline_code(LETTERS)}",
}  # fmt: skip


def build_metrics_page() -> str:
    lines = [
        "# Every metric",
        "",
        MADE,
        "",
        "This page lists the metrics that a run exposes for Prometheus and OpenTelemetry. [Monitoring](monitoring.md) describes how to scrape",
        "them, and provides a dashboard and alert rules.",
        "",
        f"The full name of each metric begins with `{PREFIX}`, which the table omits. Every metric has the label `pipeline`. The",
        "third column lists its other labels; an empty cell means that it has none. Counters are stored in the commit, so they continue across",
        'restarts, except those whose meaning says "in this process". The [glossary](glossary.md) explains the terms.',
        "",
        "| metric | type | other labels | meaning |",
        "|---|---|---|---|",
    ]
    metrics = Metrics()
    metrics.update(_OF_A_JOIN)
    for family in sorted(metrics.collect(), key=lambda f: f.name):
        name = family.name.removeprefix(PREFIX) + ("_total" if family.type == "counter" else "")
        labels = ", ".join(format_inline_code(n) for n in getattr(family, "_labelnames", ()) if n != "pipeline")
        lines.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    lines += [
        "",
        "## Values of the labels",
        "",
        "| label | values |",
        "|---|---|",
        *(f"| `{label}` | {values} |" for label, values in _LABEL_VALUES.items()),
    ]
    return "\n".join(lines) + "\n"


PAGES: Mapping[str, Callable[[], str]] = {"keys.md": build_config_keys_page, "metrics.md": build_metrics_page}
