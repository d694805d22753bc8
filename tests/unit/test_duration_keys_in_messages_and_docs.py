"""Messages, pages and templates name the duration key that takes a unit, such as `gap = "30m"`.

A config check reports the key in the spelling of the user. `Spec.read` ensures this.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from slackwater.config.join import Join
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Lookup, Source
from slackwater.config.spec_base import find_duration_keys
from slackwater.config.target import StateStore
from slackwater.config.window import Window

ROOT = Path(__file__).parents[2]
KEYS = sorted(
    {key for cls in (Window, Join, Source, Lookup, Pipeline, StateStore) for key in find_duration_keys(cls).values()}
)
NAMED = re.compile(rf"\b({'|'.join(KEYS)})\b")
RESPELLED = {"window.py", "join.py", "step_base.py"}  # modules of config/ with messages of `Spec.check`
MADE = {
    "keys.md",
    "messages",
    "python",
    "write-config.md",
    "adr",
}  # pages that name both forms, or parameters of a function


def _find_message_strings(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the string literals that contain a space, except docstrings."""
    tree = ast.parse(file.read_text())
    held = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and " " in node.value
            and id(node) not in held
        ):
            yield node.lineno, node.value


def test_more_than_15_duration_keys_are_checked() -> None:
    assert len(KEYS) > 15


def test_messages_do_not_name_duration_keys_in_milliseconds() -> None:
    source = ROOT / "src" / "slackwater"
    sentences = [
        f"{file.relative_to(ROOT)}:{line}: {text}"
        for file in sorted(source.rglob("*.py"))
        if not (file.parent.name == "config" and file.name in RESPELLED)
        for line, text in _find_message_strings(file)
        if NAMED.search(text)
    ]
    assert sentences == []


def test_doc_pages_do_not_name_duration_keys_in_milliseconds() -> None:
    pages = [
        ROOT / "README.md",
        *(p for p in sorted((ROOT / "docs").rglob("*.md")) if not MADE & {p.name, p.parent.name}),
    ]
    sentences = [f"{page.name}: {m[0]}" for page in pages for m in NAMED.finditer(page.read_text())]
    assert sentences == []


def test_ui_templates_do_not_name_duration_keys_in_milliseconds() -> None:
    templates = sorted((ROOT / "src" / "slackwater" / "ui" / "templates").iterdir())
    assert [t.name for t in templates if NAMED.search(t.read_text())] == []
