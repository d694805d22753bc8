"""psycopg cursors that treat `%` within quotes as a plain character, and as a placeholder only elsewhere.

SELECT "rate%" FROM "100%s"."t" WHERE k = %s       one placeholder
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Self

import psycopg

_QUOTED = re.compile(r'"(?:[^"]|"")*"|\'(?:[^\']|\'\')*\'')


def escape_percents(query: Any) -> Any:
    """Double each `%` within quotes, because psycopg requires this in queries with parameters."""
    if not isinstance(query, str) or "%" not in query:
        return query
    return _QUOTED.sub(lambda match: match[0].replace("%", "%%"), query)


class Cursor(psycopg.Cursor[Any]):
    """A client-side cursor."""

    def execute(self, query: Any, params: Any = None, **more: Any) -> Self:
        return super().execute(query if params is None else escape_percents(query), params, **more)

    def executemany(self, query: Any, params_seq: Iterable[Any], **more: Any) -> None:
        super().executemany(escape_percents(query), params_seq, **more)


class NamedCursor(psycopg.ServerCursor[Any]):
    """A server-side cursor."""

    def execute(self, query: Any, params: Any = None, **more: Any) -> Self:
        return super().execute(query if params is None else escape_percents(query), params, **more)
