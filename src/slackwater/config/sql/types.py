"""Spark's types by name, as far as a check asks which kind one is of."""

from __future__ import annotations

INTEGERS = ("tinyint", "smallint", "int", "bigint")
NUMBERS = (*INTEGERS, "float", "double", "decimal")
SCALARS = (*NUMBERS, "boolean", "string", "binary", "date", "timestamp", "timestamp_ntz")
NO_KEYS = ("array", "map", "struct", "variant", "interval", "void")  # types that are no scalars, for certain


def base_type(type_: str) -> str:
    """Without its parameters."""
    return type_.partition("(")[0].partition("<")[0]
