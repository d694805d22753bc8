"""Check of the imports between the packages of Slackwater: `python -m tools.imports`.

Each package and each module directly in `src/slackwater` declares what it may import, in the last paragraph of its docstring:

    May import: config, core, errors, pyspark.

The names are packages and modules of Slackwater, and those of the libraries in RESTRICTED. Other libraries need no declaration. Imports in
functions and for type checkers count, and so do `import_module` with a text and texts such as "slackwater.module:attribute". Nothing may
import in a circle.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src"
PREFIX = "slackwater."
RESTRICTED = frozenset(["logging", "openlineage", "opentelemetry", "pandas", "pyspark"])
BY_NAME = frozenset(["import_module", "__import__"])  # functions that import the module with a name
_OBJECT_PATH = re.compile(
    r"(slackwater(?:\.\w+)+):\w+"
)  # a text such as "slackwater.core.time:parse", see core/connector_registry.py
_DECLARATION = re.compile(r"^May import: ([^.]*)\.\s*\Z", re.MULTILINE)

Modules = Mapping[str, Path]  # by dotted name; that of a package ends with ".__init__"


@dataclass(frozen=True)
class Import:
    """One import statement, or one call of `import_module`. Both names are dotted names of modules."""

    importer: str
    imported: str
    place: str  # file and line

    @property
    def package(self) -> str:
        return find_package(self.importer)

    @property
    def dependency(self) -> str:
        """The package of Slackwater or the library that is imported."""
        return find_package(self.imported)


def find_package(module: str) -> str:
    """Return the package of a module: `core` for `slackwater.core.types`, and the top-level name for a library."""
    return module.removeprefix(PREFIX).split(".")[0]


def find_modules(sources: Path = SOURCES) -> Modules:
    """Return the files of all modules of Slackwater."""
    return {
        ".".join(p.relative_to(sources).with_suffix("").parts): p for p in sorted(sources.rglob("slackwater/**/*.py"))
    }


def find_imports(modules: Modules) -> list[Import]:
    """Return all imports of modules of Slackwater and of restricted libraries."""
    return [statement for module in modules for statement in _read_module_imports(module, modules)]


def _read_module_imports(module: str, modules: Modules) -> Iterator[Import]:
    for node in ast.walk(ast.parse(modules[module].read_text())):
        for name in _find_imported_modules(node, module, modules):
            if name.startswith(PREFIX) or find_package(name) in RESTRICTED:
                place = f"src/{module.replace('.', '/')}.py:{getattr(node, 'lineno', 0)}"
                yield Import(module, name, place)


def _find_imported_modules(node: ast.AST, importer: str, modules: Modules) -> Iterator[str]:
    """Return the modules that a statement or a call imports."""
    match node:
        case ast.Import(names):
            yield from (_resolve_module(alias.name, modules) for alias in names)
        case ast.ImportFrom(name, names, level):
            parent = importer.split(".")[:-level] if level else []
            base = ".".join([*parent, *([name] if name else [])])
            yield from (_resolve_module(f"{base}.{alias.name}", modules) for alias in names)
        case ast.Constant(str(text)) if path := _OBJECT_PATH.fullmatch(text):
            yield _resolve_module(path[1], modules)
        case ast.Call(ast.Name(id=function) | ast.Attribute(attr=function), [argument, *_]) if function in BY_NAME:
            match argument:
                case ast.Constant(str(name)):
                    yield _resolve_module(name, modules)
                case ast.JoinedStr([ast.Constant(str(prefix)), *_]):  # each module that begins with the constant part
                    yield from (m for m in modules if m.startswith(prefix))


def _resolve_module(name: str, modules: Modules) -> str:
    """Return the module of a dotted name. The name may be that of a module, or of a value in a module."""
    if find_package(name) in RESTRICTED:
        return name
    candidates = (name, f"{name}.__init__", name.rpartition(".")[0], f"{name.rpartition('.')[0]}.__init__")
    return next((c for c in candidates if c in modules), name)


def read_declarations(modules: Modules) -> dict[str, frozenset[str] | None]:
    """Return what each package may import; None if it does not declare it."""
    declarations: dict[str, frozenset[str] | None] = {}
    for module, path in modules.items():
        if re.fullmatch(r"slackwater\.\w+(\.__init__)?", module) and module != f"{PREFIX}__init__":
            text = _DECLARATION.search(ast.get_docstring(ast.parse(path.read_text())) or "")
            names = [] if text is None else [n.strip() for n in text[1].split(",")]
            declarations[find_package(module)] = None if text is None else frozenset(n for n in names if n != "nothing")
    return declarations


def find_declaration_problems(
    imports: list[Import], declarations: Mapping[str, frozenset[str] | None]
) -> Iterator[str]:
    """Return a line for each import that its package does not declare, and for each declaration that is not used."""
    used = defaultdict(set)
    for statement in imports:
        used[statement.package].add(statement.dependency)
        allowed = declarations.get(statement.package, frozenset())
        if statement.package == statement.dependency or statement.package == "__init__":
            continue
        if statement.dependency == "__init__":
            yield f"{statement.place}: {statement.importer} imports `slackwater`. Import the module that has the value."
        elif allowed is not None and statement.dependency not in allowed:
            yield (
                f"{statement.place}: {statement.importer} imports {statement.dependency}, but {statement.package} may not. "
                f'Move the code, or add {statement.dependency} to "May import" in the docstring of {statement.package}.'
            )
    for package, allowed in declarations.items():
        if allowed is None:
            yield f'{package}: its docstring does not end with "May import: …."'
        for name in sorted((allowed or frozenset()) - used[package]):
            yield f'{package}: does not import {name}. Remove it from "May import" in the docstring.'


def find_circular_imports(imports: list[Import]) -> Iterator[str]:
    """Return a line for each folder with a circle between its modules and packages."""
    places: dict[str, dict[tuple[str, str], str]] = defaultdict(dict)
    for statement in imports:
        importer, imported = statement.importer.split("."), statement.imported.split(".")
        depth = next((i for i, (a, b) in enumerate(zip(importer, imported, strict=False)) if a != b), 0)
        if depth:  # both are in Slackwater
            edge = (importer[depth], imported[depth])
            places[".".join(importer[:depth])].setdefault(edge, statement.place)
    for folder, place_by_edge in sorted(places.items()):
        graph = defaultdict(set)
        for importing, dependency in place_by_edge:
            graph[importing].add(dependency)
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            circle = list(reversed(error.args[1]))
            steps = [f"{a} imports {b} ({place_by_edge[a, b]})" for a, b in pairwise(circle)]
            yield f"{folder}: imports in a circle: {', '.join(steps)}. Move the code that both need to one of them."


def check_imports(modules: Modules) -> list[str]:
    """Return all problems of the imports between these modules, one line each."""
    imports = find_imports(modules)
    return [*find_declaration_problems(imports, read_declarations(modules)), *find_circular_imports(imports)]


def main() -> int:
    problems = check_imports(find_modules())
    print("\n".join(problems) or "imports: each package imports only what it declares")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
