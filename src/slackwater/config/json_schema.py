"""JSON Schema of a pipeline in TOML, generated from the specs. Editors use it to complete keys and mark mistakes.

    declared keys of a spec       ──▶ one table of `$defs`
    rules between keys (`_rules`) ──▶ its `allOf`

The schema accepts every config that `slackwater check` accepts. It cannot verify SQL, references by name, or rules that
compare durations.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any

from slackwater.config.aggregation import AGGREGATES, Aggregation
from slackwater.config.config_key import ConfigKey
from slackwater.config.connection import Connection
from slackwater.config.connector_description import CONNECTORS
from slackwater.config.custom_aggregator import PATH
from slackwater.config.join import Join
from slackwater.config.pipeline import LONGEST_NAME, NAME, Pipeline
from slackwater.config.source import FRAMED, OF_PAYLOADS, Source
from slackwater.config.spec_base import Spec, find_duration_keys
from slackwater.config.stage import Transform
from slackwater.config.step_base import MOST_STAGES, KeyedStep, StepBase
from slackwater.config.target import OBJECTS, StateStore, Target
from slackwater.config.window import KINDS_OF_WINDOW, Window
from slackwater.core.humanize import format_ms

Schema = dict[str, Any]
FILE = "slackwater.schema.json"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_MOST_MS = 315_576_000_000_000  # 10000 years
_ENV: Schema = {"$ref": "#/$defs/env"}
_NUMBERS = {None: "-?[0-9]+", 0: "(?:-?0+|[0-9]+)", 1: "0*[1-9][0-9]*"}  # by minimum


def build_schema(spec: type[Spec] = Pipeline, title: str = "A Slackwater pipeline") -> Schema:
    """Build the JSON Schema (draft 2020-12) of a file with this spec."""
    defs: dict[str, Schema] = {
        "env": {
            "type": "string",
            "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}",
            "description": "A value from the environment: ${NAME}, or ${NAME:-default}",
        }
    }
    for name, least in (("", None), ("_from_0", 0), ("_above_0", 1)):
        defs[f"duration{name}"] = _duration(least)
        of_text = _duration_text(least)
        defs[f"duration_text{name}"] = {"description": '"250ms", "30s", "5m", "2h", "30d".', "anyOf": [of_text, _ENV]}
    top = _table(spec, defs)
    return {
        "$schema": _DIALECT,
        "title": title,
        "description": (spec.__doc__ or "").partition("\n")[0],
        **top,
        "$defs": dict(sorted(defs.items())),
    }


def schema_text(schema: Schema | None = None) -> str:
    """Return the file content for a JSON Schema, by default that of a pipeline."""
    return json.dumps(schema or build_schema(), indent=2, ensure_ascii=False) + "\n"


def _duration(least: int | None) -> Schema:
    of_number = {"type": "integer", "minimum": -_MOST_MS if least is None else least, "maximum": _MOST_MS}
    return {
        "description": 'Milliseconds, or "250ms", "30s", "5m", "2h", "30d".',
        "anyOf": [_duration_text(least), of_number, _ENV],
    }


def _duration_text(least: int | None) -> Schema:
    return {"type": "string", "pattern": rf"^\s*{_NUMBERS[least]}\s*(?:ms|s|m|h|d)\s*$"}


# -- tables ------------------------------------------------------------------------------------------------------------


def table_keys(spec: type[Spec]) -> Mapping[str, ConfigKey]:
    """Return the keys of a config table, including those that connectors add. A connection has those of all kinds."""
    if spec is not Connection:
        own_keys = {key: declared for key, declared in spec.KEYS.items() if not declared.python_only}
        return own_keys | {key: keys.KEYS[key] for key, keys in _connector_keys(spec).items()}
    every: dict[str, ConfigKey] = {}
    for connector in CONNECTORS.values():
        every |= {key: declared for key, declared in connector.connection.KEYS.items() if key not in every}
    return every


def _connector_keys(spec: type[Spec]) -> Mapping[str, type[Spec]]:
    """Return the keys that connectors add to sources or targets, each with the spec that declares it."""
    specs = [
        c.source_keys if spec is Source else c.own_target_keys if spec is Target else None for c in CONNECTORS.values()
    ]
    return {key: keys for keys in specs if keys is not None for key in keys.KEYS}


def _table(spec: type[Spec], defs: dict[str, Schema]) -> Schema:
    keys: dict[str, Schema] = {}
    specs = (spec, *_connector_keys(spec).values())
    units = {key: name for one in specs for name, key in find_duration_keys(one).items()}
    for key, declared in table_keys(spec).items():
        shape: Mapping[str, Any] = {"enum": list(CONNECTORS)} if (spec, key) == (Connection, "kind") else declared.shape
        described = {
            "description": _description(spec, key, declared),
            **_value(shape, defs),
            **_default(_connector_keys(spec).get(key, spec), key),
        }
        if key in units:
            keys[units[key]] = {**described, **_with_unit(shape)}
            if "default" in described:
                keys[units[key]]["default"] = format_ms(described["default"])
            described["description"] = f'The same as "{units[key]}", or a number of milliseconds.'
        keys[key] = described
    for old, new in spec.ALIASES.items():
        keys[old] = {**keys[new], "description": f"The former name of `{new}`.", "deprecated": True}
    if spec is Pipeline:
        keys["name"] = {
            "description": keys["name"]["description"],
            "anyOf": [{"type": "string", "pattern": f"^{NAME}$", "maxLength": LONGEST_NAME}, _ENV],
        }
    rules = [_require_key(spec, key) for key in spec.REQUIRED]
    rules += [{"not": {"required": list(both)}} for key in spec.KEYS for both in combinations(_spellings(spec, key), 2)]
    rules += _rules(spec)
    schema: Schema = {"type": "object", "properties": keys, "additionalProperties": False}
    return schema | ({"allOf": rules} if rules else {})


def _description(spec: type[Spec], key: str, declared: ConfigKey) -> str:
    if key in _connector_keys(spec):
        return declared.text
    words = [*dict.fromkeys(w for w, meant in spec.SUGGESTIONS.items() if meant == key)]
    elsewhere = f" Elsewhere called {', '.join(words)}." if words else ""
    return f"{declared.text}{elsewhere} See {spec.DOC_LINK}"


def _with_unit(shape: Mapping[str, Any]) -> Schema:
    """Return the schema of a duration key that requires a unit, such as `gap`."""
    name = {None: "duration_text", 0: "duration_text_from_0", 1: "duration_text_above_0"}[shape["duration"]]
    one = {"$ref": f"#/$defs/{name}"}
    return {"anyOf": [one, shape["otherwise"]]} if "otherwise" in shape else one


def _default(spec: type[Spec], key: str) -> Schema:
    field = spec.model_fields.get(spec.attribute_of(key))
    if field is None or field.is_required() or key == "kind":
        return {}
    default = field.get_default(call_default_factory=True)
    if isinstance(default, bool | str | int) and default != "":
        return {"default": default}
    return {}


def _value(shape: Mapping[str, Any], defs: dict[str, Schema]) -> Schema:
    """Return the schema for the value of a key. Only a key with a string value also accepts `${NAME}`."""
    if "of" in shape:
        spec: type[Spec] = shape["of"]
        name = spec.__name__.lower()
        if name not in defs:
            defs[name] = {}  # a placeholder, in case the table contains itself
            defs[name] = {"title": name, "description": _first_line(spec)} | _table(spec, defs)
        one: Schema = {"$ref": f"#/$defs/{name}"}
        if "named" in shape:
            names = {"propertyNames": shape["named"]} if shape["named"] else {}
            return {"type": "object", **names, "additionalProperties": one}
        return {"type": "array", "items": one} if shape.get("type") == "array" else one
    if "duration" in shape:
        name = {None: "duration", 0: "duration_from_0", 1: "duration_above_0"}[shape["duration"]]
        one = {"$ref": f"#/$defs/{name}"}
        return {"anyOf": [one, shape["otherwise"]]} if "otherwise" in shape else one
    if "enum" in shape:
        further = [shape["otherwise"]] if "otherwise" in shape else []
        return {"anyOf": [{"type": "string", "enum": shape["enum"]}, *further, _ENV]}
    return dict(shape)


def _first_line(spec: type[Spec]) -> str:
    return (spec.__doc__ or "").strip().partition("\n")[0]


# -- which keys go together --------------------------------------------------------------------------------------------


def _spellings(spec: type[Spec], *keys: str) -> list[str]:
    """Return all spellings of these keys."""
    further = {**find_duration_keys(spec), **spec.ALIASES}
    return [name for key in keys for name in (key, *(other for other, meant in further.items() if meant == key))]


def _require_key(spec: type[Spec], key: str) -> Schema:
    """Return a schema that requires a key, in any spelling."""
    spelled = _spellings(spec, key)
    return {"required": [key]} if len(spelled) == 1 else {"anyOf": [{"required": [name]} for name in spelled]}


def _if_value(value: Schema, then: Schema, *keys: str) -> Schema:
    """Return a schema that applies `then` if a key, in any of the spellings `keys`, has this value."""
    has: list[Schema] = [{"required": [key], "properties": {key: value}} for key in keys]
    return {"if": has[0] if len(has) == 1 else {"anyOf": has}, "then": then}


def _forbid_keys(keys: Iterable[str]) -> Schema:
    return {"properties": dict.fromkeys(keys, False)}


def _require_value(key: str, *values: str) -> Schema:
    """Return a schema that requires a key with one of these values, or with a value from the environment."""
    return {"required": [key], "properties": {key: {"anyOf": [{"enum": list(values)}, _ENV]}}}


def _rules(spec: type[Spec]) -> list[Schema]:
    rules: list[Schema] = []
    if spec is Connection:
        every = set(table_keys(Connection))
        rules.append({"required": ["kind"]})
        for kind, connector in CONNECTORS.items():
            connection = connector.connection
            then = {"required": list(connection.REQUIRED)} | _forbid_keys(sorted(every - set(connection.KEYS)))
            rules.append(_if_value({"const": kind}, then, "kind"))
    if issubclass(spec, StepBase):
        rules += _step_rules(spec)
    if spec is Window:
        rules += _window_rules()
    if spec is Join:
        either = {
            "allOf": [_require_key(Join, "time_window_ms")],
            **_forbid_keys(_spellings(Join, "lower_ms", "upper_ms")),
        }
        both = {"allOf": [_require_key(Join, key) for key in ("lower_ms", "upper_ms")]}
        rules.append({"oneOf": [either, both | _forbid_keys(_spellings(Join, "time_window_ms"))]})
        not_empty = {"type": "array", "minItems": 1, "items": {"not": {"pattern": "^_[Ee][Vv][Ee][Nn][Tt]_[Tt][Ss]$"}}}
        rules.append({"properties": dict.fromkeys(("left_keys", "right_keys"), not_empty)})
        columns = {"uniqueItems": True}
        rules.append({"properties": dict.fromkeys(("output_left_columns", "output_right_columns"), columns)})
    if spec is Aggregation:
        rules += _aggregation_rules()
    if spec is Source:
        rules.append({"required": ["connection", "query"]})
        rules += [
            {"if": {"required": [key]}, "then": _require_value("payload_format", payload)}
            for key, payload in OF_PAYLOADS.items()
        ]
        rules.append(_if_value({"enum": [*FRAMED, "raw"]}, _forbid_keys(["schema"]), "payload_format"))
    if issubclass(spec, Transform):
        rules.append({"anyOf": [{"required": [key]} for key in (*spec.STEPS, "sql")]})
        rules += [{"not": {"required": list(both)}} for both in combinations(spec.STEPS, 2)]
        rules.append({"if": {"required": ["join"]}, "then": _forbid_keys(["sql"])})
    if spec is StateStore:
        rules.append(_if_value({"const": "files"}, {"required": ["path"], **_forbid_keys(["url", "schema"])}, "kind"))
        url = {"anyOf": [{"pattern": f"^({'|'.join(OBJECTS)})://"}, _ENV]}
        place = {"anyOf": [{"not": {"pattern": "://"}}, {"pattern": "^file://"}, *url["anyOf"]]}
        rules.append(_if_value({"const": "files"}, {"properties": {"path": place}}, "kind"))
        rules.append({"if": {"required": ["options"]}, "then": {"properties": {"path": url}, "required": ["path"]}})
        rules.append(_if_value({"const": "postgres"}, {"required": ["url"], **_forbid_keys(["options"])}, "kind"))
        rules.append(_if_value({"const": "in_memory"}, _forbid_keys(["path", "url", "schema", "options"]), "kind"))
    if spec is Pipeline:
        rules += _pipeline_rules()
    return rules


def _step_rules(spec: type[Spec]) -> list[Schema]:
    timed = ("event_time_unit", "event_time_zone", *_spellings(spec, "max_jump_ms"))
    own_time = {"event_time_column": {"anyOf": [{"const": "_event_ts"}, _ENV]}, **dict.fromkeys(timed, False)}
    reopens = [{"if": _require_key(spec, "allowed_lateness_ms"), "then": _require_value("late_data", "reopen")}]
    return [
        *(reopens if "late_data" in spec.KEYS else ()),
        _if_value({"const": "processing"}, {"properties": own_time}, "time_mode"),
    ]


def _window_rules() -> list[Schema]:
    rules: list[Schema] = [{"required": ["aggregations"], "properties": {"aggregations": {"minItems": 1}}}]
    for kind in KINDS_OF_WINDOW:
        kinds = {key: declared.kinds for key, declared in Window.KEYS.items() if declared.kinds}
        others = _spellings(Window, *(key for key, of_key in kinds.items() if kind not in of_key))
        needs = [_require_key(Window, key) for key, of_key in kinds.items() if of_key.get(kind)]
        then = {"allOf": needs, **_forbid_keys(others)}
        if kind == "session":
            needs.append({"required": ["group_by"]})
            then["properties"]["group_by"] = {"minItems": 1}
        rules.append(_if_value({"const": kind}, then, "kind"))
    no_key = {"not": {"pattern": "^_[Ee][Vv][Ee][Nn][Tt]_[Tt][Ss]$"}}
    rules.append({"properties": {"group_by": {"uniqueItems": True, "items": no_key}}})
    rules.append({"properties": dict.fromkeys(("window_start_column", "window_end_column"), no_key)})
    standalone = {"required": ["emit_metadata"], "properties": {"emit_metadata": {"const": True}}}
    rules.append(_if_value({"const": "standalone"}, standalone, "late_data"))
    nothing = {"anyOf": [{"const": 0}, {"type": "string", "pattern": r"^\s*-?0+\s*[a-z]+\s*$"}, _ENV]}
    rules.append(
        _if_value({"not": nothing}, _require_value("emit", "updates"), *_spellings(Window, "emit_interval_ms"))
    )
    return rules


def _aggregation_rules() -> list[Schema]:
    spelled = {new: old for old, new in Aggregation.ALIASES.items()}
    names = ("agg", spelled["agg"])
    column = _require_key(Aggregation, "column")
    rules: list[Schema] = []
    for agg in (*AGGREGATES, "count_col"):
        needs = [] if agg == "count" else [column]
        kinds = {key: declared.kinds for key, declared in Aggregation.KEYS.items() if declared.kinds}
        needs += [{"required": [key]} for key, of_key in kinds.items() if of_key.get(agg)]
        others = _forbid_keys(key for key, of_key in kinds.items() if agg not in of_key)
        rules.append(_if_value({"const": agg}, {**({"allOf": needs} if needs else {}), **others}, *names))
    exact = {"required": ["max_distinct_values_per_group"]}
    rough = _forbid_keys(["max_distinct_values_per_group"])
    is_exact = {"required": ["mode"], "properties": {"mode": {"const": "exact"}}}
    unknown = {"required": ["mode"], "properties": {"mode": _ENV}}
    bounded = {"if": is_exact, "then": exact, "else": {"if": unknown, "else": rough}}
    rules.append(_if_value({"const": "count_distinct"}, bounded, *names))
    rules.append(_if_value({"const": "approx_quantile"}, {"properties": {"k": {"minimum": 8}}}, *names))
    custom_rules = _forbid_keys([*Aggregation.builtin_keys(), "column", spelled["column"]])
    rules.append(_if_value({"type": "string", "pattern": f"^{PATH.pattern}$"}, custom_rules, *names))
    no_time = {"not": {"pattern": "^_[Ee][Vv][Ee][Nn][Tt]_[Tt][Ss]$"}}
    rules.append({"properties": dict.fromkeys(("as", spelled["as"]), no_time)})
    return rules


_KEYED = [name for name, step in Transform.STEPS.items() if issubclass(step, KeyedStep)]


def _pipeline_rules() -> list[Schema]:
    def has(step: str, key: str, value: str) -> Schema:
        inner = {"required": [step], "properties": {step: {"required": [key], "properties": {key: {"const": value}}}}}
        return {"required": ["transform"], "properties": {"transform": inner}}

    def with_table(name: str) -> Schema:
        return {"required": ["transform"], "properties": {"transform": {"required": [name]}}}

    joins, keyed = with_table("join"), [with_table(name) for name in _KEYED]
    keeps = {"required": ["transform"], "properties": {"transform": {"required": ["on_error"]}}}
    keeps["properties"]["transform"]["properties"] = {"on_error": {"const": "dlq"}}  # type: ignore[index]
    sends_letters = {"anyOf": [keeps, *(has(name, "late_data", "dlq") for name in Transform.STEPS)]}
    two_sides = {"properties": {"sources": {"minItems": 2, "maxItems": 2}}}
    return [
        {"properties": {"sources": {"minItems": 1}, "stages": {"minItems": 2, "maxItems": MOST_STAGES}}},
        {"oneOf": [{"required": ["transform"]}, {"required": ["stages"]}]},
        {"oneOf": [{"required": ["target"]}, {"required": ["targets"], "properties": {"targets": {"minItems": 1}}}]},
        {"if": {"anyOf": [joins, *keyed, has("window", "kind", "session")]}, "then": {"required": ["state_store"]}},
        {"if": joins, "then": two_sides},
        {"if": sends_letters, "then": {"required": ["dead_letter"]}},
    ]


__all__ = ["FILE", "build_schema", "schema_text"]

if __name__ == "__main__":
    import sys

    sys.stdout.write(schema_text())
