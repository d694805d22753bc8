"""Test the lint of names, docstrings and phrases. Each rule rejects its examples, and the project has no findings."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

import pytest
from tools import english

CLEAN = '''
"""Windows by key."""

def merge_rows(left: list[int], right: list[int]) -> list[int]:
    """Return the rows of both sides."""
    rows = left + right
    return rows
'''


def rules(check: Callable[[ast.AST, str], Iterator[english.Finding]], code: str) -> list[str]:
    return [f.name for f in check(ast.parse(code), "x.py")]


@pytest.mark.parametrize(
    ("check", "code", "names"),
    [
        (english.local_names, "found = 1", ["found"]),
        (english.local_names, "for at in (): pass", ["at"]),
        (english.local_names, "def f(*, given): pass", ["given"]),
        (english.local_names, "left = 1", ["left"]),
        (english.local_names, "left, right = 1, 2", []),
        (english.local_names, "x.found = 1", []),
        (english.public_names, "class Told: pass", ["Told"]),
        (english.public_names, "class A:\n    def of(self): pass", ["of"]),
        (english.public_names, "def offsets(): pass", []),
        (english.docstrings, 'def f():\n    """Whether it runs."""', ["Whether"]),
        (english.docstrings, 'class A:\n    """Of one engine."""', ["Of"]),
        (english.docstrings, '"""The same again."""', ["The same"]),
        (english.docstrings, '"""Offsets of a source."""', []),
        *((check, CLEAN, []) for check in (english.local_names, english.public_names, english.docstrings)),
    ],
)
def test_rule_rejects_bad_code_and_accepts_clean_code(
    check: Callable[[ast.AST, str], Iterator[english.Finding]], code: str, names: list[str]
) -> None:
    assert rules(check, code) == names


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("hours is no column of the sample", "is no"),
        ("the table is not there", "is not there"),
        ("it begins anew", "anew"),
        ("the page stands beside the run", "beside"),
        ("mend it", "mend"),
    ],
)
def test_unidiomatic_phrase_is_rejected(line: str, name: str) -> None:
    assert [f.name for f in english.phrases("page.md", line)] == [name]


@pytest.mark.parametrize(
    "line", ["there is no state yet", "There is no key", "it is no longer read", "tests/merged_beside.py", "amend it"]
)
def test_a_correct_sentence_passes(line: str) -> None:
    assert list(english.phrases("page.md", line)) == []


def test_second_class_with_the_same_name_is_rejected() -> None:
    files = [("a.py", "class Reader: pass"), ("b.py", "class Reader: pass"), ("c.py", "class Writer: pass")]
    assert [(f.file, f.name) for f in english.class_owners(iter(files))] == [("b.py", "Reader")]


def test_project_has_no_lint_findings(capsys: pytest.CaptureFixture[str]) -> None:
    code = english.main()
    assert code == 0, capsys.readouterr().out
