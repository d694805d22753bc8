"""The page that lists, for each section of docs/semantics.md, the tests that enforce it.

A test names the sections in a marker, such as `@pytest.mark.semantics("sessions", "emission")`. Its docstring says what it checks.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tests.support.markdown_pages import FENCE

from docgen.error_and_warning_sources import ROOT
from docgen.markdown import MADE, escape_table_cell

_MARKER = "pytest.mark.semantics"
_SEMANTICS = ROOT / "docs" / "semantics.md"


@dataclass(frozen=True)
class MarkedTest:
    """A test with the marker.

    Args:
        file: The path from the root of the project.
        name: The name of the function.
        anchors: The anchors of the sections that the test enforces.
        description: The first paragraph of its docstring.
        is_exhaustive: Whether only `make test-all` runs the test.
    """

    file: str
    name: str
    anchors: tuple[str, ...]
    description: str
    is_exhaustive: bool


def read_section_titles() -> dict[str, str]:
    """Return the titles of the sections of docs/semantics.md by their anchors."""
    text = FENCE.sub("", _SEMANTICS.read_text())
    titles = re.findall(r"^##+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-"): title for title in titles}


def collect_marked_tests() -> list[MarkedTest]:
    """Return all tests with the marker, by file and line."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return [test for path in paths for test in parse_marked_tests(str(path.relative_to(ROOT)), path.read_text())]


def parse_marked_tests(file: str, text: str) -> Iterator[MarkedTest]:
    """Yield the tests with the marker in the text of a file."""
    if _MARKER not in text:
        return
    for node in ast.parse(text).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        calls = [d for d in node.decorator_list if isinstance(d, ast.Call)]
        anchors = [ast.literal_eval(a) for d in calls if ast.unparse(d.func) == _MARKER for a in d.args]
        if anchors:
            paragraph = (ast.get_docstring(node) or "").partition("\n\n")[0]
            is_exhaustive = any(ast.unparse(d.func) == "exhaustive" for d in calls)
            yield MarkedTest(file, node.name, tuple(anchors), " ".join(paragraph.split()), is_exhaustive)


def build_semantics_tests_page() -> str:
    """Return the page: a heading for each section, with a link to it and its tests."""
    lines = [
        "# Tests of the semantics",
        "",
        MADE,
        "",
        "These tests enforce the sections of [Semantics](semantics.md). A test names its sections in the marker",
        "`pytest.mark.semantics`, from which this page is generated. Many other tests cover details of the same sections.",
        "",
        "Tests in `tests/laws` compare runs in one process with an oracle, for random rows and crashes. Tests in `tests/contract` use",
        "real stores and targets, tests in `tests/spark` and `tests/e2e` run on Spark, and tests in `tests/unit` check one module each.",
    ]
    tests = collect_marked_tests()
    for anchor, title in read_section_titles().items():
        lines += ["", f"## {title}", "", f"Section: [{title}](semantics.md#{anchor})", ""]
        lines += [
            f"- {escape_table_cell(t.description)} `{t.name}` in `{t.file}`" for t in tests if anchor in t.anchors
        ]
    return "\n".join(lines) + "\n"


PAGES: Mapping[str, Callable[[], str]] = {"semantics-tests.md": build_semantics_tests_page}
