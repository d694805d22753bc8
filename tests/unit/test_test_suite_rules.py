"""Rules for the tests: shared code is in tests/support, and file names are unique."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from tests.support.case_selection import select_cases
from tests.support.external_dependencies import skip_or_fail_without_dependency

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
FILES = sorted(TESTS.rglob("*.py"))
NAMED = re.compile(r"\b(?:tests(?:\.\w+)*\.)?(?:test_\w+|conftest)\b")


def find_imported_tests(text: str) -> list[str]:
    """Return the test files that a file imports, including imports in scripts for other processes."""
    modules = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            modules += [f"{node.module}.{name.name}" for name in node.names]
        elif isinstance(node, ast.Import):
            modules += [name.name for name in node.names]
    modules += re.findall(r"^\s*(?:from|import) (tests\.[\w.]+)", text, re.MULTILINE)
    return sorted({m.group() for name in modules if (m := NAMED.match(name))})


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TESTS)))
def test_test_files_do_not_import_each_other(path: Path) -> None:
    assert find_imported_tests(path.read_text()) == [], "what two tests share is a module in tests/support"


def test_imports_of_test_files_are_detected() -> None:
    text = "from tests.unit import test_a, x\nimport tests.unit.test_b\nfrom tests.spark.test_c import y\nS = '''\nfrom tests.e2e.test_d import z\n'''"
    assert find_imported_tests(text) == [
        f"tests.{n}" for n in ("e2e.test_d", "spark.test_c", "unit.test_a", "unit.test_b")
    ]
    assert find_imported_tests("from test_e import x\nimport test_f") == ["test_e", "test_f"]
    assert find_imported_tests("from tests.support.tests import test\nfrom tests.laws import naive") == []


def test_test_file_names_are_unique() -> None:
    names = Counter(path.name for path in FILES if path.name.startswith("test_"))
    assert [name for name, many in names.items() if many > 1] == []


def test_every_support_module_has_a_docstring() -> None:
    for path in (TESTS / "support").rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path


NAMED_FILE = re.compile(r"[`/]((?:\w+/)*\w+\.py)\b")
USER_FILES = {"file.py"}  # names of files that users write


def find_missing_files_in_docstring(path: Path, existing_names: set[str]) -> list[str]:
    """Return the Python files that the docstring of a module names in backticks or as a path, but that do not exist."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    named = {Path(name).name for name in NAMED_FILE.findall(docstring)}
    return sorted(named - existing_names - USER_FILES)


def test_module_docstrings_name_only_existing_files(tmp_path: Path) -> None:
    folders = ("src", "tests", "benchmarks", "docgen", "tools")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    names = {path.name for path in paths}
    missing = {
        str(path.relative_to(ROOT)): files for path in paths if (files := find_missing_files_in_docstring(path, names))
    }
    assert not missing
    (example := tmp_path / "example.py").write_text('"""See `gone.py`, `laws/lost.py` and `conftest.py`."""')
    assert find_missing_files_in_docstring(example, names) == ["gone.py", "lost.py"]


def read_makefile_targets() -> dict[str, str]:
    """Return the targets that `make help` lists, with their commands."""
    recipes = re.findall(r"^([a-z-]+):[^\n]*##[^\n]*\n((?:\t[^\n]*\n)*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return dict(recipes)


def test_docs_name_every_make_target_and_only_existing_ones() -> None:
    make_targets = read_makefile_targets()
    for page in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md", ".ci/run"):
        named = set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)\b", (ROOT / page).read_text(), re.MULTILINE))
        assert named <= set(make_targets), page
    text = (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    assert [name for name in make_targets if f"make {name}" not in text and name not in ("help", "clean")] == []
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony.split() == list(make_targets)


def test_ci_runs_the_checks_and_every_case_of_every_test() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    assert re.findall(r"^make [a-z-]+", ci, re.MULTILINE)[:2] == ["make lint", "make test-all"]
    (oldest,) = re.findall(r'"pyspark>=([\d.]+),', (ROOT / "pyproject.toml").read_text())
    assert re.search(rf"^make test-spark VERSION={re.escape(oldest)}\.\d+ ", ci, re.MULTILINE)
    assert "export CI=1" in ci
    recipes = read_makefile_targets()
    assert re.search(r"^check: lint\b", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert '-m "not exhaustive"' in recipes["test"]
    assert "SLACKWATER_TEST_ALL=1" in recipes["test-all"]
    assert "-m " not in recipes["test-all"]


@pytest.mark.parametrize("name", ["CI", "SLACKWATER_TEST_ALL"])
def test_missing_service_skips_a_test_unless_all_tests_are_required(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("SLACKWATER_TEST_ALL", raising=False)
    skip_or_fail_without_dependency("python", True, "nothing")
    with pytest.raises(
        pytest.skip.Exception, match="there is no Broker on this machine; get it with: apt-get install b"
    ):
        skip_or_fail_without_dependency("Broker", False, "apt-get install b")
    monkeypatch.setenv(name, "1")
    with pytest.raises(
        pytest.fail.Exception, match="there is no Broker on this machine; get it with: apt-get install b"
    ):
        skip_or_fail_without_dependency("Broker", False, "apt-get install b")


def test_cases_beyond_the_selected_ones_are_marked_exhaustive() -> None:
    """Marked cases retain the ids and the marks of the case."""
    cases = select_cases([1, 2, ("a", 3), pytest.param(4, id="four", marks=pytest.mark.slow)], keep=2)
    assert cases[:2] == [1, 2]
    assert [(case.values, case.id, [mark.name for mark in case.marks]) for case in cases[2:]] == [
        (("a", 3), None, ["exhaustive"]),
        ((4,), "four", ["slow", "exhaustive"]),
    ]


def test_every_exhaustive_test_has_a_related_test_in_make_test() -> None:
    """Only tests/support/case_selection.py adds the mark. At least one case, or a related test, stays unmarked."""
    marked = [p.name for p in FILES if re.search(r"mark\.exhaustive", p.read_text()) and p.name != Path(__file__).name]
    assert marked == ["case_selection.py"]
    texts = {p.name: p.read_text() for p in FILES}
    named = [n for text in texts.values() for n in re.findall(r'^@exhaustive\(\s*beside="(.*)"\s*\)$', text, re.M)]
    assert len(named) == sum(len(re.findall(r"^@exhaustive\b", text, re.M)) for text in texts.values()) > 5
    for file, test in (name.split("::") for name in named):
        decorated = re.search(rf"((?:^@.*\n|^[ )\]].*\n)*)^def {test}\(", texts[file], re.M)
        assert decorated, f"{file} has no {test}"
        assert "@exhaustive(" not in decorated[1].rpartition("\n\n")[2], f"{test} is exhaustive itself"
