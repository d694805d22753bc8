"""What a pipeline of several stages is made of, as its latest commit has it."""

from __future__ import annotations

from dataclasses import dataclass

from slackwater.maintenance.history import open_windows
from slackwater.state.protocol import Manifest
from slackwater.watermark import NO_WATERMARK


@dataclass(frozen=True)
class StageSeen:
    """One stage: what it reads, which window or join it is, and where it stands. `open`: windows, or rows that wait."""

    reads: tuple[str, ...]
    kind: str
    watermark_us: int | None
    open: int
    rows: int
    emitted: int


def stages(manifest: Manifest) -> tuple[StageSeen, ...]:
    """Every stage, in order."""
    return tuple(_stage(m) for m in manifest.stages)


def _stage(m: Manifest) -> StageSeen:
    alone = m.model_copy(update={"then": None})
    watermark = None if m.watermark_us <= NO_WATERMARK else m.watermark_us
    rows = sum(meta.rows for shard in m.segments for meta in shard)
    emitted = sum(m.counters.get("emitted", {}).values())
    return StageSeen(
        tuple(m.sources), str(m.fingerprint.get("kind", "")), watermark, open_windows(alone), rows, emitted
    )
