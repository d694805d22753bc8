"""Seeded event files: two Parquet files per source and epoch, which are read in order of modification time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.benchmark_cases import EventStream, OrderStream

FILES_PER_EPOCH = 2
SCHEMA = "k STRING, ts TIMESTAMP, v DOUBLE"
ORDERS_SCHEMA = "order_id STRING, amount DOUBLE, ts TIMESTAMP"  # also of payments
SIDES = ("orders", "payments")
LATENESS_S = 5
_DISORDER_S = 2
_LATE_S = 60
_START_US = 1_709_251_200_000_000  # 2024-03-01, a multiple of every window length
START = pl.lit(_START_US).cast(pl.Datetime("us", "UTC"))
# Times are multiples of 7 ms plus half a millisecond. No two are exactly a gap apart, and none is on the boundary of a window,
# so both systems close the same windows although Spark keeps its watermark in milliseconds.
_TICK_US, _HALF_MS_US = 7_000, 500
_HOT = 10**12  # larger than the number of any other order


def write_stream_files(stream: EventStream | OrderStream, into: Path, seed: int = 7) -> Path:
    """Write the files of a stream, unless they exist. Return their directory, which has a folder per source for orders."""
    directory = into / "-".join(str(value) for value in asdict(stream).values())
    if directory.exists():
        return directory
    if isinstance(stream, EventStream):
        for epoch, frame in enumerate(generate_epoch_frames(stream, seed)):
            _write_epoch_files(directory, epoch, frame)
    else:
        for epoch, both in enumerate(generate_order_and_payment_frames(stream, seed)):
            for side, frame in zip(SIDES, both, strict=True):
                _write_epoch_files(directory / side, epoch, frame)
    return directory


def _write_epoch_files(directory: Path, epoch: int, frame: pl.DataFrame) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    half = len(frame) // FILES_PER_EPOCH
    for part in range(FILES_PER_EPOCH):
        path = directory / f"{epoch:05d}-{part}.parquet"
        frame.slice(part * half, half).write_parquet(path)
        modified = _START_US // 1_000_000 + epoch * FILES_PER_EPOCH + part
        os.utime(path, (modified, modified))


def generate_epoch_frames(stream: EventStream, seed: int = 7) -> Iterator[pl.DataFrame]:
    """Yield the rows of each epoch."""
    rng = np.random.default_rng(seed)
    if stream.load_epochs:
        each = stream.idle_keys // stream.load_epochs
        for epoch in range(stream.load_epochs):
            yield _event_rows(rng, epoch, stream, "idle-{}", np.arange(epoch * each, (epoch + 1) * each))
    for epoch in range(stream.load_epochs, stream.load_epochs + stream.epochs):
        yield _event_rows(rng, epoch, stream, "user-{}", rng.integers(stream.keys, size=stream.rows))


def _event_rows(rng: np.random.Generator, epoch: int, stream: EventStream, name: str, ids: np.ndarray) -> pl.DataFrame:
    """Return the rows of one epoch. Their times are spread over its step, up to two seconds early, and some up to a minute."""
    seconds = (epoch + rng.random(len(ids))) * stream.step_s - rng.random(len(ids)) * _DISORDER_S
    if stream.late:
        seconds -= (rng.random(len(ids)) < stream.late) * rng.random(len(ids)) * _LATE_S
    return pl.select(
        k=pl.format(name, pl.lit(pl.Series(ids))),
        ts=_event_times(seconds),
        v=pl.lit(pl.Series(rng.random(len(ids)) * 100)),
    )


def generate_order_and_payment_frames(stream: OrderStream, seed: int) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """Yield orders and payments, epoch by epoch. The first payments are for orders from before the stream.

    orders      ──●──────────────────────────▶ event time
    payments      └─ up to 1.1 within_s ──●    in the epoch of its own time
    """
    rng = np.random.default_rng(seed)
    a_second = stream.rows / stream.step_s
    for epoch in range(stream.epochs):
        numbers = np.arange(stream.rows) + epoch * stream.rows
        since = rng.random(stream.rows) * 1.1 * stream.within_s
        paid = np.floor(numbers - since * a_second).astype(np.int64)
        seconds = numbers / a_second
        yield _order_or_payment_rows(rng, stream, numbers, seconds), _order_or_payment_rows(rng, stream, paid, seconds)


def _order_or_payment_rows(
    rng: np.random.Generator, stream: OrderStream, numbers: np.ndarray, seconds: np.ndarray
) -> pl.DataFrame:
    """Return the rows of one source and epoch, with the order and the time of each, up to two seconds early."""
    if stream.hot:
        numbers = np.where(numbers % round(1 / stream.hot) == 0, _HOT, numbers)
    return pl.select(
        order_id=pl.format("order-{}", pl.lit(pl.Series(numbers))),
        amount=pl.lit(pl.Series(np.round(rng.random(len(numbers)) * 100, 2))),
        ts=_event_times(seconds - rng.random(len(numbers)) * _DISORDER_S),
    )


def _event_times(seconds: np.ndarray) -> pl.Expr:
    """Return event times for seconds after the start of the stream."""
    micros = _START_US + (seconds * 1e6 / _TICK_US).astype(np.int64) * _TICK_US + _HALF_MS_US
    return pl.lit(pl.Series(micros)).cast(pl.Datetime("us", "UTC"))
