"""The imports between packages: each package imports only what its docstring declares, and nothing in a circle."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import imports

PAGE = imports.ROOT / "docs" / "architecture.md"
DECLARED = '"""Values.\n\nMay import: {}.\n"""\n'


def check(folder: Path, **sources: str) -> list[str]:
    """Check a package `core` with these modules, which may import `errors`, and a package `ui`, which may import `core`."""
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


def test_each_package_imports_only_what_it_declares() -> None:
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
        'importlib.import_module(f"slackwater.ui{name}")',
    ],
)
def test_an_undeclared_import_and_the_circle_are_found(tmp_path: Path, statement: str) -> None:
    undeclared, circle = check(tmp_path, notebook=statement)
    assert "slackwater.core.notebook imports ui, but core may not." in undeclared
    assert circle.startswith("slackwater: imports in a circle: ")
    assert "ui imports core (src/slackwater/ui/__init__.py:5)" in circle


def test_a_restricted_library_must_be_declared(tmp_path: Path) -> None:
    assert check(tmp_path, values="import polars") == []
    (problem,) = check(tmp_path, values="from pyspark.sql import functions")
    assert "slackwater.core.values imports pyspark, but core may not." in problem


def test_a_circle_in_a_package_is_found(tmp_path: Path) -> None:
    (problem,) = check(tmp_path, a="from slackwater.core import b", b="from slackwater.core.a import x")
    assert problem.startswith("slackwater.core: imports in a circle: ")


def test_an_unused_or_missing_declaration_is_found(tmp_path: Path) -> None:
    assert check(tmp_path, __init__=DECLARED.format("errors")) == [
        'core: does not import errors. Remove it from "May import" in the docstring.'
    ]
    assert check(tmp_path, __init__='"""Values."""') == ['core: its docstring does not end with "May import: …."']
