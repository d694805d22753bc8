"""Imports between packages: a package imports only what its docstring declares, without import cycles."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from tools import imports

PAGE = imports.ROOT / "docs" / "architecture.md"
DECLARED = '"""Values.\n\nMay import: {}.\n"""\n'


def check_core_imports(folder: Path, **sources: str) -> list[str]:
    """Check a package `core` with these modules, which may import `errors`, and `ui`, which may import `core`."""
    files = {
        "core/__init__": DECLARED.format("errors") + "import slackwater.errors",
        "errors": DECLARED.format("nothing"),
        "ui/__init__": DECLARED.format("core") + "from slackwater import core",
        **{f"core/{name}": text for name, text in sources.items()},
    }
    for name, text in files.items():
        path = folder / "slackwater" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return imports.check_imports(imports.find_modules(folder))


def test_packages_import_only_declared_packages() -> None:
    assert imports.check_imports(imports.find_modules()) == []


@pytest.mark.parametrize(
    "statement",
    [
        "import slackwater.ui",
        "from slackwater import ui",
        "from slackwater.ui import page",
        "from ..ui import page",
        "def show():\n    from slackwater.ui import page",
        "if TYPE_CHECKING:\n    from slackwater.ui import page",
        'import_module("slackwater.ui")',
        'CLASS = "slackwater.ui.page:Page"',
        'importlib.import_module(f"slackwater.ui{name}")',
    ],
)
def test_undeclared_import_and_import_cycle_are_reported(tmp_path: Path, statement: str) -> None:
    undeclared, circle = check_core_imports(tmp_path, notebook=statement)
    assert "slackwater.core.notebook imports ui, but core may not." in undeclared
    assert circle.startswith("slackwater: imports in a circle: ")
    assert "ui imports core (src/slackwater/ui/__init__.py:5)" in circle


def test_import_of_a_restricted_library_must_be_declared(tmp_path: Path) -> None:
    assert check_core_imports(tmp_path, values="import polars") == []
    (problem,) = check_core_imports(tmp_path, values="from pyspark.sql import functions")
    assert "slackwater.core.values imports pyspark, but core may not." in problem


def test_import_cycle_within_a_package_is_reported(tmp_path: Path) -> None:
    (problem,) = check_core_imports(tmp_path, a="from slackwater.core import b", b="from slackwater.core.a import x")
    assert problem.startswith("slackwater.core: imports in a circle: ")


def test_unused_and_missing_declarations_are_reported(tmp_path: Path) -> None:
    assert check_core_imports(tmp_path, __init__=DECLARED.format("errors")) == [
        'core: does not import errors. Remove it from "May import" in the docstring.'
    ]
    assert check_core_imports(tmp_path, __init__='"""Values."""') == [
        'core: its docstring does not end with "May import: …."'
    ]


def read_architecture_lines() -> list[tuple[list[str], str]]:
    """Return the packages of each line of the drawing in docs/architecture.md, and the rest of the line."""
    drawing = PAGE.read_text().partition("\n## Packages\n")[2].split("```")[1]
    lines = [line.partition("│") for line in drawing.splitlines() if "│" in line]
    return [(packages.split(), steps) for packages, _, steps in lines[1:]]  # the first line is the header


def test_architecture_drawing_has_packages_above_their_dependencies() -> None:
    lines = [packages for packages, _ in read_architecture_lines()]
    heights = {package: -number for number, packages in enumerate(lines) for package in packages}
    declarations = imports.read_declarations(imports.find_modules())
    assert sorted(p for packages in lines for p in packages) == sorted(declarations)
    for package, allowed in declarations.items():
        for dependency in (allowed or frozenset()) - imports.RESTRICTED:
            assert heights[dependency] < heights[package], f"{PAGE}: draw {dependency} below {package}"


def test_architecture_drawing_names_existing_modules() -> None:
    on_line: Sequence[str] = ()
    for packages, steps in read_architecture_lines():
        on_line = packages or on_line
        for name in re.findall(r"[a-z_/]+\.py", steps):
            assert name.partition("/")[0] in on_line
            assert (imports.SOURCES / "slackwater" / name).is_file()


NAMED = re.compile(r"`(?:slackwater\.)?((?:[a-z_]+\.)+\w+)")
SETTING = re.compile(
    r"spark\.(?!analysis|sessions|tuning|\w+_)"
)  # a setting of Spark, not a module of `slackwater.spark`


def is_module_or_member(name: str, folder: Path) -> bool:
    """Return whether a dotted name is a module below a folder, or occurs in the module that it names."""
    part, _, rest = name.partition(".")
    if (folder / part).is_dir():
        return not rest or is_module_or_member(rest, folder / part)
    module = folder / f"{part}.py"
    text, defined = (module.read_text(), rest) if module.is_file() else ((folder / "__init__.py").read_text(), part)
    return not defined or re.search(rf"\b{defined.partition('.')[0]}\b", text) is not None


def test_docs_and_docstrings_name_existing_modules() -> None:
    """Check every `package.module.name` in docstrings, comments and pages, so that a move updates the texts."""
    root = imports.SOURCES / "slackwater"
    packages = {p.parent.name for p in root.glob("*/__init__.py")}
    texts = [*root.rglob("*.py"), *(imports.ROOT / "docs").rglob("*.md"), imports.ROOT / "benchmarks" / "README.md"]
    stale = [
        f"{path.relative_to(imports.ROOT)}: {name}"
        for path in texts
        for name in NAMED.findall(path.read_text())
        if name.partition(".")[0] in packages and not SETTING.match(name) and not name.endswith((".py", ".toml"))
        if not is_module_or_member(name, root)
    ]
    assert stale == []


def test_architecture_page_names_existing_files() -> None:
    """Accept the bare name of a source file, and a path from the source root or the project root."""
    root = imports.SOURCES / "slackwater"
    bare = {path.name for path in root.rglob("*.py")}
    for name in re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)", PAGE.read_text()):
        assert name in bare or (root / name).is_file() or (imports.ROOT / name).is_file(), name
