"""The table of connectors: one description per kind of system, loaded when the kind is first used.

built in       kind -> "module:attribute", from `connectors/__init__.py`, which the package `slackwater` registers here
entry points   kind -> "module:attribute", from installed packages (entry-point group `slackwater.connectors`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "slackwater.connectors"


class BrokenConnectorError(Exception):
    """Raised if a package cannot provide the description of its connector. The message names the package."""


class ConnectorTable(Mapping[str, Any]):
    """The descriptions of all connectors, by kind.

    Iterating yields the built-in kinds and the other kinds used so far. The entry points of installed packages are read
    once per process, when a kind that is not built in is first looked up.
    """

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}
        self._find_built_in: Callable[[], Mapping[str, str]] = dict
        self._installed: Mapping[str, list[EntryPoint]] | None = None

    def register_built_in(self, find: Callable[[], Mapping[str, str]]) -> None:
        """Set the function that returns the import paths of the built-in descriptions, by kind."""
        self._find_built_in = find

    def __getitem__(self, kind: str) -> Any:
        """Return the description of a kind.

        Raises KeyError if the kind is unknown, and BrokenConnectorError if its package cannot provide the description.
        """
        if kind not in self._loaded:
            path = self._find_built_in().get(kind)
            self._loaded[kind] = self._load_installed(kind) if path is None else load_object(path)
        return self._loaded[kind]

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys([*self._find_built_in(), *self._loaded])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def installed_kinds(self) -> list[str]:
        """Return the built-in kinds and the kinds of all installed packages. This reads the entry points."""
        return list(dict.fromkeys([*self, *self._entry_points()]))

    def load_installed(self) -> list[Any]:
        """Return the descriptions of all kinds. A kind whose package cannot provide its description is omitted."""
        descriptions = []
        for kind in self.installed_kinds():
            try:
                descriptions.append(self[kind])
            except BrokenConnectorError:
                continue  # a config that names this kind reports the error
        return descriptions

    def _entry_points(self) -> Mapping[str, list[EntryPoint]]:
        if self._installed is None:
            from importlib.metadata import entry_points

            installed: dict[str, list[EntryPoint]] = {}
            for point in entry_points(group=GROUP):
                installed.setdefault(point.name, []).append(point)
            self._installed = installed
        return self._installed

    def _load_installed(self, kind: str) -> Any:
        points = self._entry_points().get(kind, [])
        if not points:
            raise KeyError(kind)
        packages = sorted({_package_name(point) for point in points})
        if len(packages) > 1:
            raise BrokenConnectorError(
                f'connector "{kind}" is registered by {len(packages)} packages ({", ".join(packages)}); uninstall all but one'
            )
        try:
            description = points[0].load()
        except Exception as error:  # the package may raise anything
            first_line = next(iter(str(error).splitlines()), "")
            reason = f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
            raise BrokenConnectorError(
                f'connector "{kind}" of package {packages[0]} cannot be imported from {points[0].value} ({reason}); repair '
                "the package, or uninstall it"
            ) from error
        if getattr(description, "kind", None) != kind:
            raise BrokenConnectorError(
                f'connector "{kind}" of package {packages[0]}: {points[0].value} is not a ConnectorDescription with '
                f'kind = "{kind}"; repair the package, or uninstall it'
            )
        return description


def _package_name(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value.partition(":")[0]


def load_object(path: str) -> Any:
    """Return the object at an import path, as in "package.module:attribute"."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


TABLE = ConnectorTable()
