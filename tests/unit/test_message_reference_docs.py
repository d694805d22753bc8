"""Every message has a heading in docs/messages, and the generated pages match the code."""

from __future__ import annotations

import ast
import io
import re
import sys
from pathlib import Path

import pytest
from docgen import generated_pages, learn_page_pictures
from docgen.error_and_warning_pages import HEADINGS
from docgen.error_and_warning_sources import (
    CLASSES,
    NOT_ABOUT_KEYS,
    ROOT,
    SOURCES,
    WARNING,
    SourceMessage,
    collect_config_mistakes,
    collect_messages,
    extract_expression_text,
    is_mismatch_call,
)
from docgen.error_explanations import ERRORS, WARNINGS
from tests.support.markdown_pages import find_heading_anchors

from slackwater.cli import main as cli
from slackwater.errors import BadRowError, ConfigError, LockHeldError, SlackwaterError, StartError, Topic

FOUND = collect_messages()
TOPICS = (*ERRORS, *WARNINGS)
TEXT = "\n".join((ROOT / "docs" / page).read_text() for page in {t.page for t in TOPICS})
MISTAKES = (ROOT / "docs" / "messages" / "config-keys.md").read_text()
PASSED_ON = {"StartError", WARNING}  # may raise collected lines of other functions


def test_every_kind_of_message_is_collected_from_the_source_code() -> None:
    """The counts show that no kind of message is overlooked. Each error class is raised at least once."""
    kinds = {m.kind for m in FOUND}
    assert kinds == {*CLASSES, WARNING} - {"SlackwaterError"}
    assert sum(m.kind == "StartError" for m in FOUND) > 150
    assert sum(m.kind == WARNING for m in FOUND) > 20
    assert len(collect_config_mistakes()) > 10


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("""mismatch(f'"{name}"', f"at most {most}")""", 'found "…", expected at most …'),
        ("""f"{key}: {describe_value_mismatch(value, 'a table')}\"""", "…: found …, expected a table"),
        (
            """"--json: " + mismatch("both", "one; remove one of them")""",
            "--json: found both, expected one; remove one of them",
        ),
    ],
)
def test_mismatch_call_is_documented_as_the_text_that_it_formats(source: str, text: str) -> None:
    assert extract_expression_text(ast.parse(source, mode="eval").body) == text


@pytest.mark.parametrize("message", FOUND, ids=lambda m: f"{m.file}:{m.line}")
def test_every_message_has_a_heading_in_the_docs(message: SourceMessage) -> None:
    (topic,) = (t for t in TOPICS if message.belongs_to(t))
    assert topic.anchor in find_heading_anchors(TEXT)
    if message.topic is Topic.PIPELINE_START:
        assert len(message.text.replace("…", "").split()) < 4, (
            f"{message.file}:{message.line}: {message.text!r} has no topic that says what to do: pass one where it is "
            "raised, then make reference"
        )
    if message.text:
        assert message.text in TEXT, f"{message.text!r} is not in docs/messages: make reference"


def test_every_config_mistake_is_listed_in_the_docs() -> None:
    for texts in collect_config_mistakes().values():
        for text in texts:
            assert text in MISTAKES, f"{text!r} is not in docs/messages/config-keys.md: make reference"


def test_every_message_topic_has_a_unique_heading_and_a_message() -> None:
    names = [t.anchor for t in TOPICS]
    assert len(set(names)) == len(names)
    assert [t.topic for t in ERRORS] == [*Topic]
    assert all(t.topic == f"{t.page.removeprefix('messages/')}#{t.anchor}" for t in ERRORS)
    unused = [t.title for t in TOPICS if not any(m.belongs_to(t) for m in FOUND)]
    assert not unused, f"no message is of {unused}: remove them from docgen/error_explanations.py"


def test_quotes_on_the_frequent_errors_page_are_in_the_source_code() -> None:
    trees = [ast.parse(path.read_text()) for path in SOURCES.rglob("*.py")]
    nodes = [n for tree in trees for n in ast.walk(tree)]
    texts = "\n".join(
        extract_expression_text(n)
        for n in nodes
        if isinstance(n, ast.JoinedStr | ast.BinOp | ast.Constant) or is_mismatch_call(n)
    )
    rows = [line for line in (ROOT / "docs" / "errors.md").read_text().splitlines() if line.startswith("| `")]
    quotes = [quote for row in rows for quote in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    assert len(quotes) > 15
    for quote in quotes:
        fragments = [re.escape(fragment.strip()) for fragment in quote.split("…")]
        assert re.search(".*".join(fragments), texts), f"docs/errors.md quotes {quote!r}, which is not in the sources"


def test_error_has_a_link_to_its_docs() -> None:
    for error, link in (
        (ConfigError(["p: name: missing"]), "config.md#the-config-is-wrong"),
        (BadRowError("p: 1 bad row"), "run.md#bad-rows-stop-the-pipeline"),
        (
            LockHeldError("pipeline is already running: process 7 holds it"),
            "state.md#another-runner-holds-the-pipeline",
        ),
        (
            StartError("p: Kafka at b:1 cannot be reached (no); check", Topic.SERVICE_UNREACHABLE),
            "services.md#a-service-cannot-be-reached",
        ),
        (StartError("something else"), "commands.md#the-pipeline-cannot-start"),
    ):
        assert error.documented == f"docs/messages/{link}"
        page, _, anchor = link.partition("#")
        assert anchor in find_heading_anchors((ROOT / "docs" / "messages" / page).read_text())
        assert "Traceback" not in "\n".join(error._render_traceback_())
        assert error._render_traceback_()[-1].endswith(str(error.documented))
    assert SlackwaterError("x").documented is None


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_error_prints_its_docs_link_only_on_a_terminal(
    terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = _Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "argv", ["slackwater", "state", "ls", str(tmp_path / "none")])
    with pytest.raises(SystemExit):
        cli.main()
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("error: ")
    place = "for the cause and the solution, see docs/messages/state.md#there-is-no-state-to-read"
    assert lines[1:] == ([place] if terminal else [])


@pytest.mark.parametrize("name", [*generated_pages.PAGES])
def test_generated_reference_page_is_current(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == generated_pages.PAGES[name](), "make reference"


@pytest.mark.parametrize("name", [*learn_page_pictures.PICTURES])
def test_doc_pictures_match_the_code_that_draws_them(name: str) -> None:
    assert (ROOT / "docs" / "learn" / name).read_text() == learn_page_pictures.PICTURES[name](), "make reference"


def test_headings_of_config_mistakes_name_existing_modules() -> None:
    """After a move, a module that is not about keys would appear among the mistakes of keys, under a wrong heading."""
    config = SOURCES / "config"
    assert {*HEADINGS, *NOT_ABOUT_KEYS} <= {p.stem for p in config.rglob("*") if p.suffix == ".py" or p.is_dir()}
