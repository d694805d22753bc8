"""Columns by name and type, the tables of one SELECT, and the findings of a check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ColumnTypes:
    """Columns by name, with their types as Spark prints them (None: unknown).

    `is_complete`: there are no other columns.

    `groupable`: the case-folded names by which rows may be grouped (see `config.groupable_columns`), as far as this
    check tracks them.
    """

    types: Mapping[str, str | None] = field(default_factory=dict)
    is_complete: bool = False
    groupable: frozenset[str] = frozenset()

    def has(self, name: str) -> bool:
        return name.casefold() in (column.casefold() for column in self.types)

    def type_of(self, name: str) -> str | None:
        return next((t for column, t in self.types.items() if column.casefold() == name.casefold()), None)


UNKNOWN = ColumnTypes()


@dataclass
class SqlFindings:
    """The findings about one SQL text: mistakes, constructs that are not row-wise, and what could not be decided."""

    problems: list[str] = field(default_factory=list)
    non_row_wise: set[str] = field(default_factory=set)
    undecided: list[str] = field(default_factory=list)
    catalog_tables: list[str] = field(default_factory=list)  # names of tables that may come from a catalog


@dataclass
class SelectScope:
    """The tables of one SELECT by alias, and the aliases in its list that later items may use."""

    tables: list[tuple[str, ColumnTypes]]
    aliases: dict[str, str | None] = field(default_factory=dict)
    merged: set[str] = field(default_factory=set)  # columns of USING, which both tables have
    natural: bool = False
    may_group: bool = False  # some of the rows may be grouped by a window bound
    is_grouped: bool = False  # they are grouped by one, so aggregates are allowed

    @property
    def is_complete(self) -> bool:
        return all(columns.is_complete for _, columns in self.tables)

    def names(self) -> list[str]:
        return list(dict.fromkeys(name for _, columns in self.tables for name in columns.types))


def table_function_columns(names: Sequence[str]) -> ColumnTypes:
    """Return the columns of a table function, if the SQL names them."""
    return ColumnTypes(dict.fromkeys(names), bool(names))


def rename_columns(columns: ColumnTypes, names: Sequence[str]) -> ColumnTypes:
    """Rename columns by an alias such as `AS t(a, b)`."""
    if not names:
        return columns
    if len(names) != len(columns.types) or not columns.is_complete:
        any_of_them = frozenset(map(str.casefold, names)) if columns.groupable else frozenset[str]()
        return ColumnTypes(dict.fromkeys(names), True, any_of_them)
    bounds = {
        new.casefold() for new, old in zip(names, columns.types, strict=True) if old.casefold() in columns.groupable
    }
    return ColumnTypes(dict(zip(names, columns.types.values(), strict=True)), columns.is_complete, frozenset(bounds))
