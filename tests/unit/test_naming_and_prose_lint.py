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


def list_rejected_names(check: Callable[[ast.AST, str], Iterator[english.LintFinding]], code: str) -> list[str]:
    return [f.name for f in check(ast.parse(code), "x.py")]


@pytest.mark.parametrize(
    ("check", "code", "names"),
    [
        (english.find_vague_local_names, "found = 1", ["found"]),
        (english.find_vague_local_names, "for at in (): pass", ["at"]),
        (english.find_vague_local_names, "def f(*, given): pass", ["given"]),
        (english.find_vague_local_names, "left = 1", ["left"]),
        (english.find_vague_local_names, "left, right = 1, 2", []),
        (english.find_vague_local_names, "x.found = 1", []),
        (english.find_vague_public_names, "class Told: pass", ["Told"]),
        (english.find_vague_public_names, "class A:\n    def of(self): pass", ["of"]),
        (english.find_vague_public_names, "def offsets(): pass", []),
        (english.find_dependent_docstrings, 'def f():\n    """Whether it runs."""', ["Whether"]),
        (english.find_dependent_docstrings, 'class A:\n    """Of one engine."""', ["Of"]),
        (english.find_dependent_docstrings, '"""The same again."""', ["The same"]),
        (english.find_dependent_docstrings, '"""Offsets of a source."""', []),
        *(
            (check, CLEAN, [])
            for check in (
                english.find_vague_local_names,
                english.find_vague_public_names,
                english.find_dependent_docstrings,
            )
        ),
    ],
)
def test_lint_rejects_vague_names_and_dependent_docstrings_and_accepts_clean_code(
    check: Callable[[ast.AST, str], Iterator[english.LintFinding]], code: str, names: list[str]
) -> None:
    assert list_rejected_names(check, code) == names


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
def test_lint_rejects_an_unidiomatic_phrase(line: str, name: str) -> None:
    assert [f.name for f in english.find_bad_phrases("page.md", line)] == [name]


@pytest.mark.parametrize(
    "line", ["there is no state yet", "There is no key", "it is no longer read", "tests/merged_beside.py", "amend it"]
)
def test_lint_accepts_a_correct_sentence(line: str) -> None:
    assert list(english.find_bad_phrases("page.md", line)) == []


def test_lint_rejects_a_second_class_with_the_same_name() -> None:
    files = [("a.py", "class Reader: pass"), ("b.py", "class Reader: pass"), ("c.py", "class Writer: pass")]
    assert [(f.file, f.name) for f in english.find_duplicate_class_names(iter(files))] == [("b.py", "Reader")]


def test_project_has_no_lint_findings(capsys: pytest.CaptureFixture[str]) -> None:
    code = english.main()
    assert code == 0, capsys.readouterr().out
