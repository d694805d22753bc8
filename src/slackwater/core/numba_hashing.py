"""Compiled loops that hash the keys of rows as Spark's `xxhash64(keys…)` does.

`core.hashing` has the definition, row by row. Importing this module takes a third of a second, because it imports Numba.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from slackwater.core.hashing import COMPILED_TYPES, SEED
from slackwater.core.numba_loops import Int64s, compiled, inline_loop
from slackwater.core.schema import Field

UInt64s = NDArray[np.uint64]

_P1, _P2, _P3 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9)
_P4, _P5 = np.uint64(0x85EBCA77C2B2AE63), np.uint64(0x27D4EB2F165667C5)


def hash_keys_compiled(columns: Sequence[pa.Array], fields: Sequence[Field], seed: int = SEED) -> Int64s:
    """Return the hash of each row.

    Args:
        columns: The key columns, of equal length. An INT column may be hashed as a BIGINT.
        fields: The type as which each column is hashed, one of `COMPILED_TYPES`.
        seed: The hash of a row whose keys are all NULL.
    """
    assert {len(column) for column in columns} == {len(columns[0])}
    assert all(field.type in COMPILED_TYPES for field in fields)
    hashes = np.full(len(columns[0]), seed % (1 << 64), np.uint64)
    for column, field in zip(columns, fields, strict=True):
        hashed = _hash_column(column, field, hashes)
        hashes = hashed if not column.null_count else np.where(_to_bools(column.is_valid()), hashed, hashes)
    return hashes.view(np.int64)


def compile_hash_loops() -> None:
    """Compile all loops, or load them from the cache, so that the first epoch does not have to."""
    fields = [Field("c", type_) for type_ in ("string", "bigint", "int")]
    # `pa.array` would import pandas
    columns = [pl.Series([value], dtype=f.polars).to_arrow() for f, value in zip(fields, ("a", 1, 1), strict=True)]
    hash_keys_compiled(columns, fields)


def _hash_column(column: pa.Array, field: Field, seeds: UInt64s) -> UInt64s:
    if field.type == "string":
        column = column.cast(pa.large_string())
        _, offsets, data = column.buffers()
        bounds = _view(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        return hash_strings(_view(data, np.uint8), bounds, seeds)
    if field.type == "bigint":
        return hash_longs(_to_numbers(column.cast(pa.int64()), np.int64), seeds)
    return hash_ints(_to_numbers(column.cast(pa.int32()), np.int32), seeds)


def _to_bools(column: pa.Array) -> NDArray[np.bool_]:
    return _to_numbers(column.cast(pa.int8()), np.int8).view(np.bool_)


def _to_numbers(column: pa.Array, dtype: type[np.generic]) -> NDArray[Any]:
    """Return the values of a column, which are undefined where it is NULL. PyArrow's to_numpy would import pandas."""
    return _view(column.buffers()[1], dtype)[column.offset : column.offset + len(column)]


def _view(buffer: pa.Buffer | None, dtype: type[np.generic]) -> NDArray[Any]:
    """Return a read-only array. For arrays that are sometimes writable, Numba would compile a function several times."""
    array = np.empty(0, dtype) if buffer is None else np.frombuffer(buffer, dtype)
    array.setflags(write=False)
    return array


@compiled
def hash_longs(values: Int64s, seeds: UInt64s) -> UInt64s:
    """Return the hash of each BIGINT."""
    hashes = np.empty(len(values), np.uint64)
    for i in range(len(values)):
        hashed = (seeds[i] + _P5 + np.uint64(8)) ^ _round(np.uint64(0), np.uint64(values[i]))
        hashes[i] = _finish(_rotate(hashed, np.uint64(27)) * _P1 + _P4)
    return hashes


@compiled
def hash_ints(values: NDArray[np.int32], seeds: UInt64s) -> UInt64s:
    """Return the hash of each INT."""
    hashes = np.empty(len(values), np.uint64)
    for i in range(len(values)):
        hashed = (seeds[i] + _P5 + np.uint64(4)) ^ (np.uint64(np.uint32(values[i])) * _P1)
        hashes[i] = _finish(_rotate(hashed, np.uint64(23)) * _P2 + _P3)
    return hashes


@compiled
def hash_strings(data: NDArray[np.uint8], bounds: Int64s, seeds: UInt64s) -> UInt64s:
    """Return the hash of each string. String i consists of the bytes from `bounds[i]` to `bounds[i + 1]`."""
    hashes = np.empty(len(seeds), np.uint64)
    for i in range(len(seeds)):
        position, stop, seed = bounds[i], bounds[i + 1], seeds[i]
        if stop - position >= 32:
            one, two, three, four = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
            while position + 32 <= stop:
                one = _round(one, _word(data, position))
                two = _round(two, _word(data, position + 8))
                three = _round(three, _word(data, position + 16))
                four = _round(four, _word(data, position + 24))
                position += 32
            hashed = _rotate(one, np.uint64(1)) + _rotate(two, np.uint64(7))
            hashed += _rotate(three, np.uint64(12)) + _rotate(four, np.uint64(18))
            for lane in (one, two, three, four):
                hashed = (hashed ^ _round(np.uint64(0), lane)) * _P1 + _P4
        else:
            hashed = seed + _P5
        hashed += np.uint64(stop - bounds[i])
        while position + 8 <= stop:
            hashed = _rotate(hashed ^ _round(np.uint64(0), _word(data, position)), np.uint64(27)) * _P1 + _P4
            position += 8
        if position + 4 <= stop:
            half = np.uint64(0)
            for place in range(4):
                half |= np.uint64(data[position + place]) << np.uint64(8 * place)
            hashed = _rotate(hashed ^ (half * _P1), np.uint64(23)) * _P2 + _P3
            position += 4
        while position < stop:
            hashed = _rotate(hashed ^ (np.uint64(data[position]) * _P5), np.uint64(11)) * _P1
            position += 1
        hashes[i] = _finish(hashed)
    return hashes


@inline_loop
def _word(data: NDArray[np.uint8], position: np.int64) -> np.uint64:
    """Return eight bytes as a little-endian number."""
    word = np.uint64(0)
    for place in range(8):
        word |= np.uint64(data[position + place]) << np.uint64(8 * place)
    return word


@inline_loop
def _rotate(number: np.uint64, bits: np.uint64) -> np.uint64:
    return (number << bits) | (number >> (np.uint64(64) - bits))


@inline_loop
def _round(lane: np.uint64, word: np.uint64) -> np.uint64:
    return _rotate(lane + word * _P2, np.uint64(31)) * _P1


@inline_loop
def _finish(hashed: np.uint64) -> np.uint64:
    hashed = (hashed ^ (hashed >> np.uint64(33))) * _P2
    hashed = (hashed ^ (hashed >> np.uint64(29))) * _P3
    return hashed ^ (hashed >> np.uint64(32))
