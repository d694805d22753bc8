"""The pages on Python: an index, and a page per group of exported names."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import slackwater
from docgen.config_key_and_metric_pages import TABLES, format_heading_anchor, format_table_heading
from docgen.error_and_warning_sources import ROOT
from docgen.markdown import MADE, escape_table_cell, extract_first_sentence, format_inline_code
from slackwater.config.spec_base import Spec

_GROUPS: Mapping[str, tuple[str, tuple[str, ...]]] = {  # page: title, names
    "python/config.md": (
        "Config classes",
        (
            "Pipeline",
            "Source",
            "Transform",
            "Stage",
            "Window",
            "Aggregation",
            "Join",
            "Dedup",
            "Keyed",
            "Lookup",
            "Target",
            "StateStore",
            "FilesConnection",
            "KafkaConnection",
            "PostgresConnection",
            "DeltaConnection",
            "IcebergConnection",
            "RabbitMQConnection",
            "KinesisConnection",
            "PubSubConnection",
            "ConsoleConnection",
            "Aggregator",
            "KeyedFunction",
            "KeyedResult",
        ),
    ),
    "python/define.md": (
        "Define and load pipelines",
        (
            "pipeline",
            "streaming_pipeline",
            "pipelines",
            "RegisteredPipeline",
            "load",
            "loads",
            "to_toml",
            "describe",
            "Plan",
        ),
    ),
    "python/run.md": (
        "Run pipelines and batches",
        (
            "run",
            "run_streaming_pipeline",
            "Handle",
            "batch",
            "batch_join",
            "SlackwaterError",
            "ConfigError",
        ),
    ),
    "python/state.md": ("Query the state in Python", ("open_state", "StateView", "why", "WhyReport")),
}
_INTRODUCTIONS: Mapping[str, tuple[str, ...]] = {  # first lines of a page
    "python/define.md": (
        "With these functions and classes, you define a pipeline in Python, or load it from a TOML file. You can then",
        "[run it](run.md), or look at its plan. [Write and check a config](../write-config.md#in-python) has an example.",
        "",
    ),
    "python/run.md": (
        "With these functions and classes, you run a pipeline that you have [defined or loaded](define.md), or compute the same",
        "windows and joins over batch DataFrames. The last two classes are errors: the base class of all errors that",
        "Slackwater raises, and the error for an invalid config.",
        "",
    ),
    "python/config.md": (
        "These classes describe a pipeline in Python, as the tables of a TOML file do. A config class takes the",
        "[keys of its table](../keys.md) as keyword arguments, with the same names, defaults and checks. Three keys are reserved",
        "words of Python, so their arguments end with an underscore: `as_`, `class_` and `from_`.",
        "",
        "The last three classes on this page have a different purpose: with them, you write your own aggregations and operators.",
        "",
    ),
    "python/state.md": (
        "With these functions and classes, a program can read the open windows of a pipeline, and find out what they wait for.",
        "The pipeline may be running. [Query the state](../state/query.md) has examples.",
        "",
    ),
}
_VALUES: Mapping[str, str] = {  # exported names that are neither classes nor functions
    "pipelines": "The registered pipelines, as a dictionary that maps names to `RegisteredPipeline` objects.",
}


def build_api_index_page() -> str:
    """Return the index: each exported name with the first sentence of its docstring."""
    grouped = {name for _, names in _GROUPS.values() for name in names}
    missing = set(slackwater.__all__) - grouped - {"__version__"}
    assert not missing, f"exported names without a page: {missing}"
    lines = [
        "# Python",
        "",
        MADE,
        "",
        "The names below are available after `import slackwater as sw`. Each name links to its full description. For an",
        "overview of the most important ones, see [Write and check a config](write-config.md#in-python).",
    ]
    for page, (title, names) in _GROUPS.items():
        lines += ["", f"## {title}", "", "| name | description |", "|---|---|"]
        for name in names:
            sentence = escape_table_cell(
                extract_first_sentence(_VALUES.get(name) or _docstring_markdown(getattr(slackwater, name)))
            )
            lines.append(f"| [{format_inline_code(f'sw.{name}')}]({page}#sw{name.lower()}) | {sentence} |")
    return "\n".join(lines) + "\n"


def build_api_group_page(page: str) -> str:
    """Return a page with the exported names of one group."""
    title, names = _GROUPS[page]
    lines = [f"# {title}", "", MADE, "", *_INTRODUCTIONS.get(page, ()), "See [Python](../python.md) for all names."]
    for name in names:
        exported = getattr(slackwater, name)
        lines += ["", f"## sw.{name}", ""]
        if name in _VALUES:
            lines.append(_VALUES[name])
            continue
        is_spec = inspect.isclass(exported) and issubclass(exported, Spec)
        if callable(exported) and not is_spec:
            lines += [f"```python\nsw.{name}{_signature(exported)}\n```", ""]
        lines.append(_add_links(_docstring_markdown(exported)).rstrip())
        if is_spec:
            table = TABLES.get(name, "[connections.NAME]")
            lines += ["", f"Keys: [{format_table_heading(table)}](../keys.md#{format_heading_anchor(table)})"]
        if inspect.isclass(exported) and not issubclass(exported, Spec | Exception):
            for method, function in _documented_methods(exported):
                lines += ["", f"### sw.{name}.{method}", ""]
                lines += [
                    f"```python\n{method}{_signature(function)}\n```",
                    "",
                    _add_links(_docstring_markdown(function)).rstrip(),
                ]
    return "\n".join(lines) + "\n"


def _signature(function: Any) -> str:
    try:
        text = str(inspect.signature(function))
    except (TypeError, ValueError):
        return "(…)"
    text = (
        re.sub(r"(?<=: )'([^']*)'|(?<=-> )'([^']*)'", lambda m: m[1] or m[2], text)
        .replace("(self, ", "(")
        .replace("(self)", "()")
    )
    text = re.sub(r"ForwardRef\('([^']*)'\)", r"\1", text).replace("<factory>", "…")  # both are leaks of `inspect`
    if inspect.isclass(function):
        text = text.removesuffix(" -> None")
    return (
        text
        if len(text) < 100
        else text.replace("(", "(\n    ", 1).replace(", ", ",\n    ")
        if text.count("[") == 0
        else _fold_arguments(text)
    )


def _fold_arguments(text: str) -> str:
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


def _docstring_markdown(documented: Any) -> str:
    text = re.sub(
        r"^(Args|Raises|Attributes):\n((?: {4}.*\n?)+)",
        lambda m: f"{m[1]}:\n\n{_format_entries(m[2])}",
        _docstring_with_inherited_fields(documented),
        flags=re.MULTILINE,
    )
    # indented parts are code
    return re.sub(
        r"(?:^ {4}.*\n?(?:\n(?= {4}))?)+",
        lambda m: "```\n" + textwrap.dedent(m.group()).strip() + "\n```\n",
        text,
        flags=re.MULTILINE,
    )


def _docstring_with_inherited_fields(documented: Any) -> str:
    """Return the docstring. For a dataclass, its list of fields begins with the fields of its base classes."""
    text = inspect.getdoc(documented) or ""
    if not inspect.isclass(documented) or not dataclasses.is_dataclass(documented):
        return text
    bases = [inspect.getdoc(base) or "" for base in documented.__mro__[1:] if dataclasses.is_dataclass(base)]
    inherited = "".join(doc.partition("\nArgs:\n")[2].rstrip() + "\n" for doc in reversed(bases))
    return text.replace("\nArgs:\n", f"\nArgs:\n{inherited}", 1)


def _add_links(text: str) -> str:
    """Link the pages that a docstring names by their path, and format the names of errors as code."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _link_pages(part) for part in parts)


def _link_pages(prose: str) -> str:
    linked = re.sub(r"\bdocs/([\w/-]+\.md)\b", lambda m: f"[{_page_title(m[1])}](../{m[1]})", prose)
    return re.sub(r"(?<![\w`.])([A-Z]\w+Error)\b(?!`)", r"`\1`", linked)


def _page_title(page: str) -> str:
    return (ROOT / "docs" / page).read_text().partition("\n")[0].removeprefix("# ")


def _format_entries(section: str) -> str:
    """Return the entries of a section of a docstring, `name: text`, as a list."""
    entries = re.split(r"\n(?=\S)", textwrap.dedent(section).strip())
    named = (entry.partition(":") for entry in entries)
    return "".join(f"- `{name}`: {' '.join(text.split())}\n" for name, _, text in named)


def _documented_methods(cls: type) -> list[tuple[str, Callable[..., Any]]]:
    return [(n, m) for n, m in vars(cls).items() if not n.startswith("_") and inspect.isfunction(m) and m.__doc__]


PAGES: Mapping[str, Callable[[], str]] = {
    "python.md": build_api_index_page,
    **{page: partial(build_api_group_page, page) for page in _GROUPS},
}
