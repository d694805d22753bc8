"""Unit tests of hashes, sketches, segments, checkpoints and the plan."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.support.config_mistakes import BASE, DISTINCT, A
from tests.support.single_stage_components import build_single_stage_commit

from slackwater import explain
from slackwater.config import toml
from slackwater.config.source import Source
from slackwater.connectors.files import source as files_source
from slackwater.connectors.pipeline_sources import SourceSet
from slackwater.core.hashing import mix_bits, session_ids, shard_of, spark_xxhash64
from slackwater.core.offsets import FileOffsets
from slackwater.core.schema import Field
from slackwater.engine.row_policies import divide_group_limit
from slackwater.errors import EpochError, StateError
from slackwater.state.commit import BatchId, SegmentMetadata
from slackwater.state.files import segments
from slackwater.state.files.store import FilesStore
from slackwater.storage import arrow_files
from slackwater.storage.local import LocalStorage
from slackwater.windows.aggregations import sketches
from slackwater.windows.state_layout import DueRowFilter


def test_import_of_slackwater_loads_no_heavy_library() -> None:
    code = "import sys, slackwater; print([m for m in ('pyspark', 'pandas', 'polars', 'pyarrow', 'pydantic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_session_ids_are_stable_across_versions() -> None:
    frame = pl.DataFrame({"user": ["ann", None], "n": [1, 2], "s": [0, -5]})
    ids = session_ids(frame, [Field("user", "string"), Field("n", "bigint")], "s")
    assert ids.to_list() == [3375880392915754622, -7928412231905285644]


def test_key_hashes_balance_the_shards_and_pane_hashes_are_unique() -> None:
    hashes = np.array([spark_xxhash64((f"u{n}",), (Field("k", "string"),)) for n in range(4000)])
    counts = np.bincount(shard_of(hashes, 4))
    assert counts.min() > 900
    mixed = mix_bits(np.repeat(hashes, 10), np.tile(np.arange(10) * 60_000_000, 4000))
    assert len(np.unique(mixed)) == 40_000


@pytest.mark.parametrize("distinct", [0, 1, 100, 5_000, 200_000])
def test_sketch_estimates_are_within_the_error_for_any_batching(distinct: int) -> None:
    values = np.random.default_rng(distinct).integers(-(2**63), 2**63 - 1, distinct, dtype=np.int64)
    coupons = sketches.hash_coupons(pl.Series("c", np.concatenate([values, values[: distinct // 2]])), 14)

    def sketch(parts: int) -> pl.DataFrame:
        frame = pl.DataFrame({"g": np.zeros(len(coupons), dtype=np.int64), "c": coupons}).with_columns(
            pl.concat_list("c")
        )
        union = [
            frame.gather_every(parts, n).group_by("g").agg(sketches.merge_sketches(pl.col("c")).alias("c"))
            for n in range(parts)
        ]
        return pl.concat(union).group_by("g").agg(sketches.merge_sketches(pl.col("c")).alias("c"))

    if not distinct:
        assert sketches.estimate_distinct(pl.Series("c", [[]], dtype=pl.List(pl.Int32)), 14).to_list() == [0]
        return
    once, often = sketch(1), sketch(7)
    assert once.equals(often)
    (estimate,) = sketches.estimate_distinct(once["c"], 14)
    assert abs(estimate - distinct) <= 3 * 0.0082 * distinct + 0.5


def state_rows(**rows: int) -> pl.DataFrame:
    """Build state rows by hash. `__due` distinguishes versions."""
    hashes = sorted(int(k[1:]) for k in rows)
    due = [rows[f"h{h}"] for h in hashes]
    return pl.DataFrame(
        {"__h": hashes, "__kind": [3 if d < 0 else 0 for d in due], "__start": due, "__due": due},
        schema={"__h": pl.Int64, "__kind": pl.Int8, "__start": pl.Int64, "__due": pl.Int64},
    )


def write_segment(home: Path, name: str, frame: pl.DataFrame) -> SegmentMetadata:
    size, checksum = arrow_files.write_arrow(home / "segments" / name, frame)
    return SegmentMetadata(
        file=f"segments/{name}", rows=frame.height, bytes=size, first_due=0, last_due=99, close=99, dead=99,
        checksum=checksum,
    )  # fmt: skip


def test_segment_reader_returns_newest_versions_without_deleted_rows(tmp_path: Path) -> None:
    (tmp_path / "segments").mkdir()
    parts = [state_rows(h1=10, h2=20, h3=30), state_rows(h2=21, h4=41), state_rows(h3=-1)]
    metas = [write_segment(tmp_path, f"{n}.arrow", f) for n, f in enumerate(parts)]
    reader = segments.SegmentReader(segments.list_segments(LocalStorage(str(tmp_path)), metas), dict(parts[0].schema))
    assert sorted(reader.scan()["__due"]) == [10, 21, 41]
    assert sorted(reader.units(np.array([2, 3, 4, 9]))["__due"]) == [21, 41]
    due = reader.due(DueRowFilter(((5, 30),), ((5, 30),), (), pending_upto=0, start_before=99))
    assert sorted(due["__due"]) == [10, 21]
    nothing = DueRowFilter(((100, 199),), ((0, 199),), (), pending_upto=0, start_before=199)
    assert reader.due(nothing).is_empty()


def test_damaged_segment_file_is_reported_by_name(tmp_path: Path) -> None:
    (tmp_path / "segments").mkdir()
    meta = write_segment(tmp_path, "0.arrow", state_rows(h1=1))
    (tmp_path / meta.file).write_bytes(b"ARROW1 and then nothing")
    with pytest.raises(StateError, match=f"state file .*{Path(meta.file).name} cannot be read"):
        segments.SegmentReader(segments.list_segments(LocalStorage(str(tmp_path)), [meta]), {}).scan()


def test_segments_of_similar_size_are_merged_without_a_larger_segment() -> None:
    def metas(*rows: int) -> list[SegmentMetadata]:
        return [SegmentMetadata(file="", rows=r, bytes=0, first_due=0, last_due=0, close=0, dead=0) for r in rows]

    assert segments.count_segments_to_merge(metas(*[100] * 7)) == 0
    assert segments.count_segments_to_merge(metas(*[100] * 8)) == 8
    assert segments.count_segments_to_merge(metas(1_000_000, *[100] * 8)) == 8
    assert segments.count_segments_to_merge(metas(*[800] * 7, *[100] * 7)) == 0
    sizes: list[int] = []
    for _ in range(1000):
        sizes.append(100)
        count = segments.count_segments_to_merge(metas(*sizes))
        if count:
            sizes[-count:] = [sum(sizes[-count:])]
    assert len(sizes) < 30
    assert sum(sizes) == 100_000


def test_group_limit_is_divided_among_the_shards() -> None:
    assert [divide_group_limit(10, 4, n) for n in range(4)] == [3, 3, 2, 2]


def test_explain_shows_the_guarantee_and_the_state_size() -> None:
    counting = BASE.replace(f"[[{A}]]\n{DISTINCT}", "")
    plan = explain.build_plan(toml.loads(counting))
    assert [s.name for s in plan.stages] == [
        "read", "event time", "sql", "lift", "shuffle", "step", "emit", "commit", "publish",
    ]  # fmt: skip
    assert plan.guarantee.startswith("exactly once")
    assert plan.notes == ()
    closing = toml.loads(counting.replace('gap_ms = "30s"', 'gap_ms = "30s"\nidle_close_ms = "5m"'))
    idle = "a source counts as idle after 1m without rows"
    assert [line for line in plan.stages[1].lines if "idle" in line] == [idle]
    assert f"{idle}; after 5m the watermark follows the clock" in explain.build_plan(closing).stages[1].lines
    large = toml.loads(counting.replace('gap_ms = "30s"', 'gap_ms = "30s"\nmax_groups_per_window = 50000000'))
    assert "the state may grow to 7.5 GiB at max_groups_per_window = 50,000,000" in explain.build_plan(large).notes[0]
    in_memory = toml.loads(counting.replace('kind = "files"\npath = "state"', 'kind = "in_memory"'))
    assert explain.build_plan(in_memory).notes[0].startswith("STATE IS IN MEMORY: it is lost when the process ends")
    assert explain.build_plan(in_memory).guarantee.startswith("exactly once while the process lives")
    console = toml.loads(
        counting.replace('[target]\nconnection = "lake"\npath = "out"', '[target]\nconnection = "screen"')
    )
    assert explain.build_plan(console).guarantee.startswith("at least once")


def test_date_is_hashed_as_the_number_of_days_since_1970() -> None:
    day = Field("d", "date")
    assert spark_xxhash64((dt.date(1970, 1, 2),), (day,)) == spark_xxhash64((1,), (Field("i", "int"),))


def test_processed_files_are_stored_in_a_bounded_number_of_lists(tmp_path: Path) -> None:
    offsets, store = FileOffsets(), FilesStore(tmp_path, "p")
    store.open()
    for n in range(200):
        offsets = files_source.store_file_list(store, n, offsets, [files_source.FileEntry(f"file:///in/{n}.json", n)])
    assert offsets.count == 200
    assert len(offsets.lists) <= files_source.MERGE_AT
    assert [e.timestamp for e in files_source.load_file_list(store, offsets)] == list(range(200))
    store.close()


def json_files_source(name: str) -> files_source.FilesSource:
    spec = Source(name=name, connection="lake", query=f"{name}/*.json", format="json")
    return files_source.FilesSource(spec, None)  # type: ignore[arg-type]  # its schema is for reading only


def test_new_checkpoint_continues_at_the_offsets_of_the_state(tmp_path: Path) -> None:
    store = FilesStore(tmp_path, "p")
    store.open()
    seen = [files_source.FileEntry("file:///in/a%20b.json", 7), files_source.FileEntry("file:///in/c.json", 8)]
    streams = SourceSet(None, [json_files_source("a"), json_files_source("b")], store)  # type: ignore[arg-type]  # nothing is read
    sources = {"a": {"rows": 9, "offsets": files_source.store_file_list(store, 3, FileOffsets(), seen)}, "b": {}}
    state = build_single_stage_commit(3, sources=sources, batch=BatchId(checkpoint="lost", batch=41))
    (store.checkpoint / "older").mkdir()

    checkpoint = streams.checkpoint(state)

    assert [p.name for p in store.checkpoint.iterdir()] == [checkpoint.name], "all others are removed"
    assert json.loads((checkpoint / "sources.json").read_text()) == streams.signature()
    assert json.loads((checkpoint / "offsets" / "0").read_text().splitlines()[2]) == {"logOffset": 0}
    assert (checkpoint / "commits" / "0").exists()
    assert files_source.batch_files(checkpoint, 0, 0) == seen
    assert files_source.batch_files(checkpoint, 1, 0) == []
    assert files_source.file_uri_to_path(seen[0].path) == "/in/a b.json"

    assert streams.checkpoint(state) != checkpoint, "the state alone says where to go on"
    assert not checkpoint.exists()
    store.close()


def test_damaged_checkpoint_file_is_reported_by_name(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("v1")
    with pytest.raises(EpochError, match=r"checkpoint file .* is missing or damaged; delete the directory"):
        files_source.batch_files(tmp_path, 0, 0)
