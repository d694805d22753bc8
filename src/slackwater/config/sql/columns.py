"""Columns by name and type, the tables of one SELECT, and what is found while they are looked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class KnownColumns:
    """Columns by name, with their types as Spark prints them (None: unknown). `closed`: there are no others.

    `bounds`: those, case-folded, by which rows may be put together (see `config.bounds`), as far as they are followed here.
    """

    types: Mapping[str, str | None] = field(default_factory=dict)
    is_complete: bool = False
    groupable: frozenset[str] = frozenset()

    def has(self, name: str) -> bool:
        return name.casefold() in (column.casefold() for column in self.types)

    def type_of(self, name: str) -> str | None:
        return next((t for column, t in self.types.items() if column.casefold() == name.casefold()), None)


UNKNOWN = KnownColumns()


@dataclass
class Findings:
    """What was found in one text: mistakes, what looks beyond the row, and what could not be judged."""

    problems: list[str] = field(default_factory=list)
    non_row_wise: set[str] = field(default_factory=set)
    undecided: list[str] = field(default_factory=list)
    catalog_tables: list[str] = field(default_factory=list)  # names of tables that may be in a catalog


@dataclass
class Scope:
    """The tables of one SELECT by alias, and the aliases of its list that further items may use."""

    tables: list[tuple[str, KnownColumns]]
    aliases: dict[str, str | None] = field(default_factory=dict)
    merged: set[str] = field(default_factory=set)  # columns of USING: both tables have them
    natural: bool = False
    may_group: bool = False  # some of the rows may be put together by a bound
    is_grouped: bool = False  # they are: an aggregate is at home here

    @property
    def is_complete(self) -> bool:
        return all(columns.is_complete for _, columns in self.tables)

    def names(self) -> list[str]:
        return list(dict.fromkeys(name for _, columns in self.tables for name in columns.types))


def function_columns(names: Sequence[str]) -> KnownColumns:
    """The columns that a table function makes, where they are named."""
    return KnownColumns(dict.fromkeys(names), bool(names))


def rename_columns(columns: KnownColumns, names: Sequence[str]) -> KnownColumns:
    """The same columns by the names of an alias, `AS t(a, b)`."""
    if not names:
        return columns
    if len(names) != len(columns.types) or not columns.is_complete:
        any_of_them = frozenset(map(str.casefold, names)) if columns.groupable else frozenset[str]()
        return KnownColumns(dict.fromkeys(names), True, any_of_them)
    bounds = {
        new.casefold() for new, old in zip(names, columns.types, strict=True) if old.casefold() in columns.groupable
    }
    return KnownColumns(dict(zip(names, columns.types.values(), strict=True)), columns.is_complete, frozenset(bounds))
