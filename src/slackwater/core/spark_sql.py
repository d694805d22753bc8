"""Quote names and strings for Spark SQL."""

from __future__ import annotations

import re

_SIMPLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def quote_identifier(name: str) -> str:
    """Return a name as an identifier in backticks."""
    return "`" + name.replace("`", "``") + "`"


def quote_identifier_if_needed(name: str) -> str:
    """Return a name as an identifier, without backticks if it is a plain word."""
    return name if _SIMPLE.fullmatch(name) else quote_identifier(name)


def quote_string(value: str) -> str:
    """Return a string as an SQL literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
