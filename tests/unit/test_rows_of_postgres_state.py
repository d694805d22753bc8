"""Rows that were read from a state table are checked before they are used: times, kinds and required columns."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from slackwater.errors import StateError
from slackwater.state.postgres.table_integrity import check_rows
from slackwater.windows.state_layout import TOMBSTONE, WHOLE

LIMIT = 2**62


def check(**columns: list[Any]) -> None:
    types = {"__start": pl.Int64(), "__kind": pl.Int8(), "__h": pl.Int64()}
    frame = pl.DataFrame(columns, schema={name: types[name] for name in columns})
    check_rows(frame, '"state"', {"__h": "unit"})


@pytest.mark.parametrize("start", [LIMIT, -LIMIT, 2**63 - 1, -(2**63)])
def test_time_out_of_range_is_reported(start: int) -> None:
    with pytest.raises(StateError, match=r'time out of range in column "__start" of 2 rows of table "state"'):
        check(__start=[0, start, start], __h=[1, 2, 3])


@pytest.mark.parametrize("start", [[], [None], [None, 1 - LIMIT, LIMIT - 1]])
def test_times_within_the_range_are_accepted(start: list[int | None]) -> None:
    check(__start=start)


def test_unknown_kind_is_reported() -> None:
    check(__kind=[WHOLE, TOMBSTONE, None])
    with pytest.raises(StateError, match=r'found 1 row of an unknown kind in table "state"'):
        check(__kind=[WHOLE, 99])


def test_missing_required_value_is_reported() -> None:
    with pytest.raises(StateError, match=r'found NULL in column "unit" of 1 row of table "state", expected a value'):
        check(__h=[1, None])
