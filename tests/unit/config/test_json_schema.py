"""Check that the JSON Schema of configs is generated from the specs, and agrees with `check` in both directions."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.support import config_mistakes, invalid_connection_configs, invalid_join_configs
from tests.support.markdown_pages import find_heading_anchors
from tests.support.user_sessions_config import ISSUE

import slackwater as sw
from slackwater.config import json_schema
from slackwater.config.connection import Connection
from slackwater.config.connector_description import CONNECTORS
from slackwater.config.pipeline import Pipeline
from slackwater.config.spec_base import Spec, find_doc_link, find_duration_keys, iterate_specs
from slackwater.config.step_base import KeyedStep

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = json_schema.build_schema()
VALID = Draft202012Validator(SCHEMA)

# Mistakes that a JSON Schema cannot refuse, by the line of `check`, and why. The schema must refuse all others.
BEYOND = {
    r"expected a duration of at most 10000 years": "a pattern does not compare numbers",
    r"expected (at most|less than|more than|at least source_idleness_ms)": "two values are compared",
    r"windows \(duration_ms / hop_ms\), but at most": "two values are compared",
    r"expected one key for each of left_keys": "two lists are compared",
    r"is already the (output )?name of|is a column that emit_metadata adds|is the name of the column with the session ID|a name other than that of": "names are compared",
    r"which ignores case|declared twice|that Slackwater adds itself|are called": "names are compared",
    r"which is not a connection|which is not a source|which is also left_source": "a name refers to another table",
    r"(applies only to connections|needs a connection) of kind|of kind \"\w+\", but |\"merge\" replaces rows": "the kind is in another table",
    r"sources\[0\].format: missing": "whether files are read is in another table",
    r"sources\[0\].(avro|protobuf)_schema_file: missing": "whether there is a registry is in another table",
    r"needs a schema registry, but the connection": "whether there is a registry is in another table",
    r"lookups.users.format: missing": "a known suffix stands for a format",
    r"target.(path|table|topic): missing|dead_letter.(path|table|topic): missing": "the kind is in another table",
    r"expected a table in a namespace": "the kind is in another table",
    r"ice.options: ": "what the options of a catalog mean depends on its kind",
    r"reads (files|a table), whose rows have no default event time": "whether files are read is in another table",
    r"module \"|is a function|is the class|Mean": "code has to be imported",
    r"environment variable": "the environment is not part of the file",
    r"needs a durable|needs a kafka target|unused, because on_error": "what is missing elsewhere may be a default",
    r"sources\[0\].starting_offsets: found offsets": "the kind is in another table",
}


def iterate_invalid_config_cases() -> Iterator[Any]:
    """Yield each mistake of the tables of errors as the content of a config and the lines of `check`."""
    for case in (*config_mistakes.CASES, *invalid_connection_configs.CASES):
        base, old, new, *lines = case
        yield pytest.param(config_mistakes.replace_text(base, old, new), lines, id=lines[0].split(";")[0])
    for old, new, *lines in invalid_join_configs.CASES:
        yield pytest.param(
            invalid_join_configs.make_invalid_join_config(old, new), lines, id=f"join: {lines[0].split(';')[0]}"
        )


def parse_toml_or_none(content: str) -> Any:
    try:
        return tomllib.loads(content)
    except tomllib.TOMLDecodeError:
        return None


@pytest.mark.parametrize(("content", "lines"), list(iterate_invalid_config_cases()))
def test_schema_rejects_every_mistake_that_json_schema_can_express(content: str, lines: list[str]) -> None:
    data = parse_toml_or_none(content)
    if data is None:
        assert lines[0].startswith("is not valid TOML")
        return
    within = [line for line in lines if not any(re.search(pattern, line) for pattern in BEYOND)]
    assert VALID.is_valid(data) is (not within)


def test_schema_exception_list_has_no_stale_entries() -> None:
    lines = [line for case in iterate_invalid_config_cases() for line in case.values[1]]
    unused = [pattern for pattern in BEYOND if not any(re.search(pattern, line) for line in lines)]
    assert unused == []


def find_schema_violations(content: str) -> list[str]:
    return [f"{error.json_path}: {error.message[:300]}" for error in VALID.iter_errors(tomllib.loads(content))]


def iterate_valid_configs() -> Iterator[Any]:
    """Yield every complete config of the examples, the docs and the tests of configs."""
    for path in sorted([*ROOT.glob("examples/**/*.toml"), *ROOT.glob("tests/fixtures/**/*.toml")]):
        yield pytest.param(path.read_text(), id=str(path.relative_to(ROOT)))
    for page in sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")]):
        for i, text in enumerate(re.findall(r"^```toml\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)):
            is_installed = 'kind = "journal"' not in text  # the page implements this connector itself
            if is_installed and {"name", "sources", "target"} <= set(tomllib.loads(text)):
                yield pytest.param(text, id=f"{page.relative_to(ROOT)}-{i}")
    yield pytest.param(ISSUE, id="issue")
    for module in (config_mistakes, invalid_connection_configs, invalid_join_configs):
        for name in ("BASE", "TUMBLING", "HOPPING", "PROCESSING", "KAFKA", "PERSISTED", "LATE", "ISSUE"):
            if isinstance(content := getattr(module, name, None), str):
                yield pytest.param(content, id=f"{module.__name__.rpartition('.')[2]}.{name}")


RIGHT = list(iterate_valid_configs())


def test_valid_configs_include_those_of_readme_docs_and_examples() -> None:
    named = [str(param.id) for param in RIGHT]
    assert any(n.startswith("README.md") for n in named) and any(n.startswith("docs/") for n in named)
    assert any(n.startswith("examples/") for n in named) and any(
        n.startswith("invalid_connection_configs") for n in named
    )


@pytest.mark.parametrize("content", RIGHT)
def test_the_schema_accepts_every_valid_config(content: str) -> None:
    assert find_schema_violations(content) == []


def test_the_schema_accepts_environment_variables() -> None:
    content = config_mistakes.BASE
    for old, new in (
        ('format = "json"', 'format = "${X}"'),
        ('"30s"', '"${X}s"'),
        ('kind = "session"', 'kind = "${X}"'),
        ('on_error = "fail"', 'on_error = "${X}"'),
        ('agg = "count"\n', 'agg = "${X}"\n'),
        ('name = "p"', 'name = "${X}"'),
    ):
        content = config_mistakes.replace_text(content, old, new)
    assert find_schema_violations(content) == []


def test_shipped_schema_file_is_up_to_date_with_the_specs() -> None:
    """Regenerate with: python -m slackwater.config.json_schema > src/slackwater/config/slackwater.schema.json"""
    shipped = resources.files("slackwater.config").joinpath(json_schema.FILE).read_text("utf-8")
    assert shipped == json_schema.schema_text()
    Draft202012Validator.check_schema(json.loads(shipped))


# -- descriptions of keys


TABLES = sorted(
    {*iterate_specs(Pipeline), *(c.connection for c in CONNECTORS.values())} - {Connection},
    key=lambda spec: spec.__name__,
)


@pytest.mark.parametrize("spec", TABLES, ids=lambda spec: spec.__name__)
def test_every_key_has_a_description_and_is_named_in_its_docs_section(spec: type[Spec]) -> None:
    page, _, anchor = spec.DOC_LINK.partition("#")
    text = (ROOT / page).read_text()
    assert anchor in find_heading_anchors(text)
    (section,) = [
        s for s in re.split(r"^## ", text, flags=re.MULTILINE)[1:] if anchor in find_heading_anchors(f"## {s}")
    ]
    units = {key: name for name, key in find_duration_keys(spec).items()}
    for key, declared in spec.KEYS.items():
        if declared.python_only or (issubclass(spec, KeyedStep) and key in KeyedStep.KEYS):
            continue
        assert declared.text.endswith("."), f"{spec.__name__}.{key} has no sentence"
        assert "of" in declared.shape or f"`{units.get(key, key)}`" in section, f"{page}#{anchor} does not name {key}"


def test_schema_contains_aliases_defaults_and_deprecated_keys() -> None:
    described: Mapping[str, Any] = SCHEMA["$defs"]["window"]["properties"]
    assert "slide_ms" in described["hop"]["description"]
    assert (described["lateness_ms"]["default"], described["max_future"]["default"]) == (0, "1h")
    assert described["width_ms"]["deprecated"] is True


@pytest.mark.parametrize(
    ("key", "anchor"),
    [
        ("nam", "the-pipeline"),
        ("transform.window.gapp", "windows"),
        ("transform.window.aggregations[1].as", "aggregations"),
        ("transform.window.aggregations", "aggregations"),
        ("transform.join.left_keys", "joins"),
        ("transform.lookups.users.query", "transform"),
        ("stages[0].window.gap_ms", "windows"),
        ("stages[1].nme", "stages"),
        ("sources[0].options.sep", "sources"),
        ("connections.lake.kind", "connections"),
        ('connections."a.b".kind', "connections"),
        ("target", "target-and-dead-letters"),
        ("dead_letter.path", "target-and-dead-letters"),
        ("state_store.kind", "state-store"),
        ('spark."spark.driver.memory"', "the-pipeline"),
    ],
)
def test_each_key_links_to_its_section_of_the_docs(key: str, anchor: str) -> None:
    assert find_doc_link(Pipeline, key) == f"docs/configuration.md#{anchor}"


def test_the_schema_and_check_agree_on_the_readme_example() -> None:
    """Cover the example of the README, unchanged and with an unknown key."""
    content = (ROOT / "examples" / "sessions" / "sessions.toml").read_text()
    assert find_schema_violations(content) == []
    wrong = content.replace("gap =", "gapp =")
    assert find_schema_violations(wrong)
    with pytest.raises(sw.ConfigError):
        sw.loads(wrong)
