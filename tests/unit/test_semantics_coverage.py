"""Each section of docs/semantics.md has tests with the marker `semantics`, and a generated page lists these tests.

tests/unit/test_message_reference_docs.py checks that the page is current.
"""

from __future__ import annotations

import pytest
from docgen.semantics_tests_page import MarkedTest, collect_marked_tests, parse_marked_tests, read_section_titles
from tests.support.markdown_pages import ROOT, find_heading_anchors

TESTS = collect_marked_tests()
TITLES = read_section_titles()


@pytest.mark.parametrize("anchor", TITLES)
def test_each_semantics_section_has_a_test(anchor: str) -> None:
    """At least one test per section runs in `make test`."""
    assert anchor in find_heading_anchors((ROOT / "docs" / "semantics.md").read_text())
    assert [t.name for t in TESTS if anchor in t.anchors and not t.is_exhaustive], (
        f'no test enforces the section "{TITLES[anchor]}" of docs/semantics.md; mark one with '
        f'@pytest.mark.semantics("{anchor}"), then run make reference'
    )


def test_each_semantics_marker_names_existing_sections() -> None:
    assert [f"{t.file}::{t.name}: {a}" for t in TESTS for a in t.anchors if a not in TITLES] == []


def test_each_marked_test_has_a_description() -> None:
    assert [f"{t.file}::{t.name}" for t in TESTS if not t.description.endswith(".")] == []


def test_every_semantics_marker_in_the_tests_is_collected() -> None:
    """A marker on a class or a module would not be collected."""
    texts = {
        path: path.read_text()
        for path in (ROOT / "tests").rglob("test_*.py")
        if path.name != "test_semantics_coverage.py"
    }
    assert sum(text.count("pytest.mark.semantics(") for text in texts.values()) == len(TESTS)


def test_markers_are_collected_from_source_text() -> None:
    text = '''
@pytest.mark.semantics("a", "b")
@exhaustive(beside="test_window_invariants.py::test_rows_refused_by_max_groups_per_window_are_counted")
def test_one() -> None:
    """Two lines
    are one sentence.

    More.
    """


@pytest.mark.parametrize("n", [1])
def test_two() -> None:
    """Not marked."""
'''
    tests = list(parse_marked_tests("tests/test_z.py", text))
    assert tests == [MarkedTest("tests/test_z.py", "test_one", ("a", "b"), "Two lines are one sentence.", True)]
