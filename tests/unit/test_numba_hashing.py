"""Compiled hashes of keys equal the hashes that `core.hashing` computes row by row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slackwater.core.hashing import COMPILED_TYPES, SEED, spark_xxhash64
from slackwater.core.numba_hashing import hash_keys_compiled
from slackwater.core.schema import INTEGERS, Field

BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
VALUES: dict[str, Any] = {
    "string": st.text(max_size=80),
    "boolean": st.booleans(),
    **{name: st.integers(-(2 ** (BITS[name] - 1)), 2 ** (BITS[name] - 1) - 1) for name in INTEGERS},
}


@st.composite
def draw_key_columns(draw: Any) -> tuple[list[Field], list[list[Any]]]:
    types, count = draw(st.lists(st.sampled_from(COMPILED_TYPES), min_size=1, max_size=3)), draw(st.integers(0, 9))
    columns = [draw(st.lists(st.none() | VALUES[t], min_size=count, max_size=count)) for t in types]
    return [Field(f"k{n}", type_) for n, type_ in enumerate(types)], columns


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)  # the first texts take seconds
@given(keys=draw_key_columns(), skipped=st.integers(0, 3), large=st.booleans())
def test_compiled_hashes_equal_hashes_row_by_row(keys: Any, skipped: int, large: bool) -> None:
    """Arrays may begin within their buffers, and strings may have 64-bit offsets."""
    fields, columns = keys
    types = [pa.large_string() if large and f.type == "string" else f.arrow for f in fields]
    arrays = [pa.array(column, type_)[skipped:] for column, type_ in zip(columns, types, strict=True)]
    expected = [spark_xxhash64(row, fields) for row in zip(*(column[skipped:] for column in columns), strict=True)]
    assert hash_keys_compiled(arrays, fields).tolist() == expected


def test_integers_of_different_widths_have_equal_hashes_as_bigint() -> None:
    arrays = [pa.array([7, None, -1], type_) for type_ in (pa.int16(), pa.int32(), pa.int64())]
    hashes = [hash_keys_compiled([array], [Field("k", "bigint")]).tolist() for array in arrays]
    assert hashes[0] == hashes[1] == hashes[2]
    assert hashes[0][1] == SEED


@pytest.mark.parametrize("seed", [0, 42, -1, -(2**63)])
def test_hashes_continue_from_a_seed(seed: int) -> None:
    assert hash_keys_compiled([pa.array([None], pa.string())], [Field("k", "string")], seed).tolist() == [seed]
