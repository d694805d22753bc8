"""Seeded event files: two parquet files per epoch, read in the order of their modification times."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.cases import Stream

FILES_PER_EPOCH = 2
SCHEMA = "k STRING, ts TIMESTAMP, v DOUBLE"
LATENESS_S = 5
_DISORDER_S = 2
_LATE_S = 60
_START_US = 1_709_251_200_000_000  # 2024-03-01, a multiple of every window length
# Times are ticks of 7 ms plus half a millisecond: none is exactly a gap away from another and none on the edge of
# a window, so that both systems close the same windows although Spark keeps its watermark in milliseconds.
_TICK_US, _HALF_MS_US = 7_000, 500


def generate(stream: Stream, into: Path, seed: int = 7) -> Path:
    """Write the stream's files, unless they are there; the directory that holds them."""
    directory = into / f"{stream.keys}-{stream.rows}-{stream.step_s}-{stream.epochs}-{stream.idle_keys}-{stream.late}"
    if directory.exists():
        return directory
    directory.mkdir(parents=True)
    for epoch, frame in enumerate(_epochs(stream, seed)):
        half = len(frame) // FILES_PER_EPOCH
        for part in range(FILES_PER_EPOCH):
            path = directory / f"{epoch:05d}-{part}.parquet"
            frame.slice(part * half, half).write_parquet(path)
            modified = _START_US // 1_000_000 + epoch * FILES_PER_EPOCH + part
            os.utime(path, (modified, modified))
    return directory


def _epochs(stream: Stream, seed: int) -> Iterator[pl.DataFrame]:
    rng = np.random.default_rng(seed)
    if stream.load_epochs:
        each = stream.idle_keys // stream.load_epochs
        for epoch in range(stream.load_epochs):
            yield _rows(rng, epoch, stream, "idle-{}", np.arange(epoch * each, (epoch + 1) * each))
    for epoch in range(stream.load_epochs, stream.load_epochs + stream.epochs):
        yield _rows(rng, epoch, stream, "user-{}", rng.integers(stream.keys, size=stream.rows))


def _rows(rng: np.random.Generator, epoch: int, stream: Stream, name: str, ids: np.ndarray) -> pl.DataFrame:
    """One epoch: times spread over its step, each up to two seconds early, and some up to a minute."""
    seconds = (epoch + rng.random(len(ids))) * stream.step_s - rng.random(len(ids)) * _DISORDER_S
    if stream.late:
        seconds -= (rng.random(len(ids)) < stream.late) * rng.random(len(ids)) * _LATE_S
    micros = _START_US + (seconds * 1e6 / _TICK_US).astype(np.int64) * _TICK_US + _HALF_MS_US
    return pl.select(
        k=pl.format(name, pl.lit(pl.Series(ids))),
        ts=pl.lit(pl.Series(micros)).cast(pl.Datetime("us", "UTC")),
        v=pl.lit(pl.Series(rng.random(len(ids)) * 100)),
    )
