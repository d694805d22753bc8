"""Report database errors as one line that names the state store."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, TypeVar

import psycopg

from slackwater.errors import EpochError
from slackwater.state.postgres import client

T = TypeVar("T")


class StoreWithLocation(Protocol):
    """A store that has a location for messages."""

    @property
    def _location(self) -> str: ...


def report_database_errors(method: Callable[..., T]) -> Callable[..., T]:
    """Wrap a method of a store so that database errors become one-line EpochErrors."""

    @wraps(method)
    def reporting(self: StoreWithLocation, *arguments: Any) -> T:
        try:
            return method(self, *arguments)
        except psycopg.Error as error:
            raise EpochError(
                f"state store {self._location}: {client.error_reason(error)}; start again once the database is "
                "available"
            ) from None

    return reporting
