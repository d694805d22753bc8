"""The columns of a stage's table, by what its state is of: a window, or a join."""

from __future__ import annotations

from functools import singledispatch

from slackwater.core.dispatch import unregistered
from slackwater.joins.logic import JoinLogic
from slackwater.state.postgres import client
from slackwater.state.postgres.buffers import JoinTable
from slackwater.state.postgres.tables import Tables
from slackwater.state.protocol import Stateful, Stateless
from slackwater.windows.kept import Kept


@singledispatch
def types(logic: Stateful, tables: Tables) -> dict[str, str]:
    """Column of the table -> its type, without those that every state has."""
    unregistered(logic, "slackwater.state.postgres.columns.types")


@types.register
def _(logic: Kept, tables: Tables) -> dict[str, str]:
    return tables.types(logic)


@types.register
def _(logic: JoinLogic, tables: Tables) -> dict[str, str]:
    return JoinTable(tables, logic).types()


@types.register
def _(logic: Stateless, tables: Tables) -> dict[str, str]:
    return {}


@singledispatch
def check(logic: Stateful, tables: Tables, where: str) -> None:
    """Raise StartError for a column that Postgres cannot hold and give back."""
    unregistered(logic, "slackwater.state.postgres.columns.check")


@check.register
def _(logic: Kept, tables: Tables, where: str) -> None:
    client.check_names(list(tables.columns(logic).values()), where)


@check.register
def _(logic: JoinLogic, tables: Tables, where: str) -> None:
    JoinTable(tables, logic).check(where)


@check.register
def _(logic: Stateless, tables: Tables, where: str) -> None:
    """It has none."""
