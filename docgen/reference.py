"""The pages of the reference that are made from the code: messages, keys, commands, metrics, Python."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any, get_type_hints

import typer

import slackwater
from docgen.sources import ROOT, Message, messages, mistakes
from slackwater.cli.main import app
from slackwater.config import key_docs
from slackwater.config.spec import Spec, with_units
from slackwater.config.transform import Transform
from slackwater.engine.status import BufferCounts, Counters, StageStatus, Status
from slackwater.messages import FAMILIES, WARNING
from slackwater.metrics import PREFIX, Metrics

MADE = "<!-- made by `make reference`; not to be edited -->"


def _code(text: str) -> str:
    """As code within a sentence or a table, whatever it holds."""
    ticks = "``" if "`" in text else "`"
    pad = " " if "`" in text else ""
    return f"{ticks}{pad}{text}{pad}{ticks}".replace("|", "\\|")


def _cell(text: str) -> str:
    """A sentence within a table: what would be a link, a tag or a column is text."""
    parts = re.split(r"(`[^`]*`)", text.replace("\n", " "))
    return "".join(p if p[:1] == "`" else re.sub(r"([|<\[])", r"\\\1", p) for p in parts)


# -- messages ---------------------------------------------------------------------------------------------------------


def messages_page() -> str:
    by_family: dict[str, list[Message]] = {}
    for m in messages():
        assert m.family is not None, m
        by_family.setdefault(m.family.anchor, []).append(m)
    lines = [
        "# Messages",
        "",
        MADE,
        "",
        "Every error and warning, by what it means; `…` stands for a value. An error is one line: what is wrong, where, what was found",
        "and expected, what to do. On a terminal a second line names its heading here; in Python `error.documented` does.",
        "`slackwater` ends with exit code 2 for a wrong config or command line, with 1 for all other errors.",
    ]
    for about, chosen in groupby(FAMILIES, lambda f: WARNING in f.kinds):
        lines += ["", "## Warnings" if about else "## Errors"]
        if about:
            lines += ["", "Lines of the log, next to which the pipeline goes on."]
        for f in chosen:
            kinds = " and ".join(_code(k) for k in f.kinds if k != WARNING)
            lines += ["", f"### {f.title}", ""]
            lines += [f.means, "", f"**What to do.** {f.do}"]
            texts = sorted({m.text for m in by_family.get(f.anchor, []) if m.text})
            if texts:
                lines += ["", *([f"{kinds}:", ""] if kinds else []), *(f"- {_code(t)}" for t in texts)]
            if f.kinds == ("ConfigError",):
                lines += list(_mistakes())
    return "\n".join(lines) + "\n"


_OF_MODULES: Mapping[str, str] = {  # where the keys are documented that a module of `config` is about
    "aggregation": "aggregations",
    "aggregator": "aggregations",
    "connection": "connections",
    "ddl": "sources",
    "keyed": "transform",
    **{
        step.__module__.rpartition(".")[2]: key_docs.doc_link(step).partition("#")[2]
        for step in Transform.STEPS.values()
    },
    "join_checks": "joins",
    "source": "sources",
    "sql": "transform",
    "sql_check": "transform",
    "sql_window": "transform",
    "step": "windows",
    "target": "target-and-dead-letters",
    "transform": "transform",
    "held_names": "target-and-dead-letters",
}


def _mistakes() -> Iterator[str]:
    """Mistakes of keys, by the heading where the keys are documented."""
    texts_by_heading: dict[str, list[str]] = {}
    for module, texts in mistakes().items():
        texts_by_heading.setdefault(_OF_MODULES.get(module, "the-pipeline"), []).extend(texts)
    for heading, texts in sorted(texts_by_heading.items()):
        yield from (
            "",
            f"About keys of [{heading.replace('-', ' ')}](configuration.md#{heading}), behind the name of the key:",
            "",
        )
        yield from (f"- {_code(t)}" for t in sorted(set(texts)))


# -- keys -------------------------------------------------------------------------------------------------------------

_TABLES = {
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


def keys_page() -> str:
    schema = json.loads((ROOT / "src" / "slackwater" / "config" / "slackwater.schema.json").read_text())
    lines = [
        "# Every key",
        "",
        MADE,
        "",
        "All keys of a config by their tables, with the values that they take and their defaults. The same is in the JSON Schema for",
        "[editors](write-config.md#in-an-editor); [configuration](configuration.md) says how they go together. A value of text may also",
        "be `${NAME}` or `${NAME:-default}`, from the environment. A duration is text with its unit (`250ms`, `30s`, `5m`, `2h`, `30d`); each such",
        "key also exists with `_ms` at its end, as in `gap_ms = 1800000`, which takes a number of milliseconds too.",
    ]
    by_name = {spec.__name__: spec for spec in (*Transform.STEPS.values(), *key_docs.TEXTS)}
    for name, table in _TABLES.items():
        spec: type[Spec] = by_name[name]
        shape = schema if name == "Pipeline" else schema["$defs"][name.lower()]
        lines += [
            "",
            f"## `{table}`" if table else "## At the top",
            "",
            "| key | values | default | |",
            "|---|---|---|---|",
        ]
        units = with_units(spec)
        for key, key_schema in shape["properties"].items():
            if key in units.values():
                continue
            text = (
                key_schema["description"]
                if key_schema.get("deprecated")
                else key_docs.key_sentence(spec, units.get(key, key))
            )
            default = _code(json.dumps(key_schema["default"])) if "default" in key_schema else ""
            lines.append(f"| `{key}` | {_values(key_schema)} | {default} | {_cell(text)} |")
        page, _, anchor = key_docs.doc_link(spec).removeprefix("docs/").partition("#")
        lines += ["", f"More: [{page.removesuffix('.md')}]({page}#{anchor})."]
    return "\n".join(lines) + "\n"


def _values(key_schema: Mapping[str, Any]) -> str:
    if "$ref" in key_schema:
        name = key_schema["$ref"].rpartition("/")[2]
        return "a duration" if name.startswith("duration") else "" if name == "env" else "a table"
    if "anyOf" in key_schema:
        return " or ".join(dict.fromkeys(v for part in key_schema["anyOf"] if (v := _values(part))))
    if "enum" in key_schema:
        return ", ".join(_code(str(v)) for v in key_schema["enum"])
    if key_schema.get("type") == "array":
        return f"a list of {'tables' if '$ref' in key_schema.get('items', {}) else 'texts'}"
    kind = key_schema.get("type")
    kinds = [kind] if isinstance(kind, str) else list(kind or [])
    return " or ".join(
        {
            "string": "text",
            "integer": "a whole number",
            "number": "a number",
            "boolean": "`true`, `false`",
            "object": "a table",
        }.get(k, k)
        for k in kinds
    )


# -- commands ---------------------------------------------------------------------------------------------------------


def commands_page() -> str:
    lines = [
        "# Every command",
        "",
        MADE,
        "",
        "`slackwater COMMAND --help` says the same. Exit codes: 0; 1 for what failed; 2 for a wrong config or command line; 130 or 143",
        "ended at once by a signal; 70 a bug of ours.",
    ]
    lines += list(_command(typer.main.get_command(app), ["slackwater"]))
    return "\n".join(lines) + "\n"


def _command(command: Any, path: list[str]) -> Iterator[str]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield from ("", f"## {' '.join(path)}", "", (command.help or "").strip().replace("\n\n", "\n"))
        hints = get_type_hints(command.callback)
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        options = [p for p in command.params if p.param_type_name == "option" and p.name != "help" and not p.hidden]
        usage = [*path, *("[OPTIONS]" if options else "",), *(_usage(a) for a in arguments)]
        yield from ("", "```", " ".join(filter(None, usage)), "```")
        documented_parameters = [(_usage(a), a.help) for a in arguments if getattr(a, "help", None)] + [
            (_option(o, hints), o.help) for o in options
        ]
        if documented_parameters:
            yield from ("", "| | |", "|---|---|")
            yield from (f"| {_code(name)} | {_cell(text or '')} |" for name, text in documented_parameters)
        return
    for name in sorted(inner):
        if not inner[name].hidden:
            yield from _command(inner[name], [*path, name])


def _usage(argument: Any) -> str:
    name = (argument.metavar or argument.name or "").upper().replace("_", "-").strip("[]")
    return name if argument.required else f"[{name}]"


def _option(option: Any, hints: Mapping[str, Any]) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    if option.is_flag:
        return names
    annotation = str(hints.get(option.name, ""))
    return f"{names} {option.metavar or ('NUMBER' if 'int' in annotation or 'float' in annotation else 'PATH' if 'Path' in annotation else 'TEXT')}"


# -- metrics ----------------------------------------------------------------------------------------------------------


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


def metrics_page() -> str:
    lines = [
        "# Every metric",
        "",
        MADE,
        "",
        f"All names begin with `{PREFIX}`, and all are labelled `pipeline`. Counters come from the commit, so they continue across",
        "restarts. [How to get them](monitoring.md), with a dashboard and alerts.",
        "",
        "| metric | kind | further labels | |",
        "|---|---|---|---|",
    ]
    metrics = Metrics()
    metrics.update(_OF_A_JOIN)
    for family in sorted(metrics.collect(), key=lambda f: f.name):
        name = family.name.removeprefix(PREFIX) + ("_total" if family.type == "counter" else "")
        labels = ", ".join(_code(n) for n in getattr(family, "_labelnames", ()) if n != "pipeline")
        lines.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    return "\n".join(lines) + "\n"


# -- Python -----------------------------------------------------------------------------------------------------------


def python_page() -> str:
    lines = [
        "# Python",
        "",
        MADE,
        "",
        "What `import slackwater as sw` has. The classes that describe a pipeline take the [keys of the config](keys.md) of their table as",
        "keyword arguments, with the same names, defaults and checks.",
    ]
    for name in slackwater.__all__:
        if name == "__version__":
            continue
        exported = getattr(slackwater, name)
        lines += ["", f"## sw.{name}", ""]
        if inspect.isclass(exported) and issubclass(exported, Spec):
            shown = _TABLES.get(name, "[connections.NAME]")
            lines += [
                f"Its keys: {_code(shown)} of [every key](keys.md)."
                if shown
                else "Its keys: those [at the top](keys.md#at-the-top).",
                "",
            ]
        elif callable(exported):
            lines += [f"```python\nsw.{name}{_signature(exported)}\n```", ""]
        lines.append(_doc(exported))
        if inspect.isclass(exported) and not issubclass(exported, Spec | Exception):
            for method, function in _methods(exported):
                lines += [
                    "",
                    f"### sw.{name}.{method}",
                    "",
                    f"```python\n{method}{_signature(function)}\n```",
                    "",
                    _doc(function),
                ]
    return "\n".join(lines) + "\n"


def _signature(function: Any) -> str:
    try:
        text = str(inspect.signature(function))
    except (TypeError, ValueError):
        return "(…)"
    text = re.sub(r"'([^']*)'", r"\1", text).replace("(self, ", "(").replace("(self)", "()")
    return (
        text
        if len(text) < 100
        else text.replace("(", "(\n    ", 1).replace(", ", ",\n    ")
        if text.count("[") == 0
        else _folded(text)
    )


def _folded(text: str) -> str:
    """One argument per line; commas within brackets stay."""
    depth, folded = 0, ""
    for c in text:
        depth += (c in "([{") - (c in ")]}")
        folded += c
        if c == "," and depth == 1:
            folded += "\n   "
        if c == "(" and depth == 1:
            folded += "\n    "
    return folded


def _doc(documented: Any) -> str:
    text = re.sub(
        r"^(Args|Raises):\n((?: {4}.*\n?)+)",
        lambda m: f"{m[1]}:\n\n{_entries(m[2])}",
        inspect.getdoc(documented) or "",
        flags=re.MULTILINE,
    )
    # indented parts are code
    return re.sub(
        r"(?:^ {4}.*\n?(?:\n(?= {4}))?)+",
        lambda m: "```\n" + textwrap.dedent(m.group()).strip() + "\n```\n",
        text,
        flags=re.MULTILINE,
    )


def _entries(section: str) -> str:
    """Return the entries of a section of a docstring, `name: text`, as a list."""
    entries = re.split(r"\n(?=\S)", textwrap.dedent(section).strip())
    named = (entry.partition(":") for entry in entries)
    return "".join(f"- `{name}`: {' '.join(text.split())}\n" for name, _, text in named)


def _methods(cls: type) -> list[tuple[str, Callable[..., Any]]]:
    return [(n, m) for n, m in vars(cls).items() if not n.startswith("_") and inspect.isfunction(m) and m.__doc__]


PAGES: Mapping[str, Callable[[], str]] = {
    "messages.md": messages_page,
    "keys.md": keys_page,
    "commands.md": commands_page,
    "metrics.md": metrics_page,
    "python.md": python_page,
}
