"""`dlq replay`: processes dead letters again and prints a summary."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.cli import progress as views
from slackwater.config import toml
from slackwater.core.humanize import plural
from slackwater.errors import StartError

if TYPE_CHECKING:
    import polars as pl

    from slackwater.replay.replay import ReplayResult


def replay_file(file: Path, reason: str | None, epoch: str | None, limit: int | None, dry: bool) -> None:
    """Replay dead letters, and print which were applied and which remain, with the reasons."""
    import polars as pl

    from slackwater.runner.dead_letter_replay import replay_dead_letters

    first, last = parse_epoch_range(epoch)
    pipeline = toml.load(file)

    def choose(letters: pl.DataFrame) -> pl.DataFrame:
        chosen = letters if reason is None else letters.filter(pl.col("reason") == reason)
        chosen = chosen if first is None else chosen.filter(pl.col("epoch") >= first)
        return chosen if last is None else chosen.filter(pl.col("epoch") <= last)

    view = views.choose_view(0)
    try:
        outcome = replay_dead_letters(pipeline, choose, limit=limit, dry=dry, on_notice=view.notice)
    finally:
        view.close()
    print("\n".join(summary_lines(outcome, pipeline.name, dry)))


def parse_epoch_range(text: str | None) -> tuple[int | None, int | None]:
    """Parse `A..B` into (A, B), both inclusive; None for an open end. Raises StartError."""
    if text is None:
        return None, None
    if match := re.fullmatch(r"(\d+)", text):
        return int(match[1]), int(match[1])
    match = re.fullmatch(r"(\d*)\.\.(\d*)", text)
    if match is None or not (match[1] or match[2]):
        raise StartError(f'--epoch "{text}" is not a range of epochs; expected A..B, A.., ..B or one number')
    first, last = (int(part) if part else None for part in match.groups())
    if first is not None and last is not None and first > last:
        raise StartError(f'--epoch "{text}" is empty: {first} comes after {last}; expected A..B with A not after B')
    return first, last


def summary_lines(outcome: ReplayResult, name: str, dry: bool) -> Iterator[str]:
    """Yield the lines of a replay's summary."""
    written = sum(n for why, n in outcome.reasons.items() if why != "supersede")
    gone = outcome.reasons["supersede"]
    would = "would be applied" if dry else "applied"
    windows = f": {plural(written, 'window')} written, {gone:,} deleted" if written or gone else ""
    yield f"{name}: {plural(outcome.applied, 'letter')} {would}{windows}"
    if outcome.before:
        yield f"  {plural(outcome.before, 'letter')} had been applied before"
    for why, count in sorted(outcome.renewed.items(), key=lambda item: -item[1]):
        again = "a new letter replaces it" if count == 1 else "new letters replace them"
        yield f"  {plural(count, 'row')} now {why}: {again}"
    if outcome.refused:
        yield f"  {plural(outcome.refused, 'row')} refused: max_groups_per_window is reached"
    for why, count in sorted(outcome.remaining.items(), key=lambda item: -item[1]):
        yield f"  {plural(count, 'letter')} not applied: {why}"
