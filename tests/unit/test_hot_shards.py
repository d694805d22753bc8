"""Shards with many more rows than the others are reported, because each epoch waits for them."""

from __future__ import annotations

import re

from slackwater.cli.state_maintenance import MOST_SHARDS, _size_lines
from slackwater.maintenance.state_sizes import ShardSize, StateSizes, find_hot_shards


def shard_sizes(*rows: int, stage: int = 0) -> list[ShardSize]:
    return [ShardSize(stage, shard, 1, count, 72 * count) for shard, count in enumerate(rows)]


def render_shard_sizes(sizes: list[ShardSize]) -> str:
    return "\n".join(_size_lines(StateSizes("p", 7, shards=sizes, kept=[7], hot_shards=find_hot_shards(sizes))))


def test_a_shard_with_twice_the_rows_of_the_mean_is_hot() -> None:
    assert find_hot_shards(shard_sizes(1000, 1000, 1000, 2999)) == []
    assert [s.shard for s in find_hot_shards(shard_sizes(0, 4000, 1000, 8000, 1000))] == [3]
    assert [
        (s.stage, s.shard)
        for s in find_hot_shards([*shard_sizes(900, 100, 100, 0), *shard_sizes(100, 700, 0, stage=1)])
    ] == [
        (0, 0),
        (1, 1),
    ]
    text = render_shard_sizes(shard_sizes(0, 1000, 1000, 8000))
    assert re.search(
        r"\nhot shards +3 \(8,000 rows, 3\.2 times the mean\): more shards do not help if single keys have so many rows",
        text,
    )
    assert "--hot-keys" in text


def test_hot_shards_are_reported_per_stage() -> None:
    sizes = [*shard_sizes(1000, 1000), *shard_sizes(0, 0, 3000, stage=1)]
    assert [(s.stage, s.shard) for s in find_hot_shards(sizes)] == [(1, 2)]
    assert "2 of stage 2 (3,000 rows, 3.0 times the mean)" in render_shard_sizes(sizes)


def test_few_rows_are_not_reported_as_hot() -> None:
    assert find_hot_shards(shard_sizes(0, 0, 0, 9)) == []
    assert find_hot_shards([]) == []
    assert "hot shards" not in render_shard_sizes(shard_sizes(0, 0, 0, 9))


def test_only_the_largest_of_many_shards_are_listed() -> None:
    sizes = shard_sizes(*range(1000, 1256))
    lines = render_shard_sizes(sizes).splitlines()
    assert f"the {MOST_SHARDS} largest of 256 shards; --json lists all of them" in lines
    header = lines.index(next(line for line in lines if line.startswith("shard")))
    assert lines[header + 1].split()[:3] == ["255", "1", "1,255"]
    assert len([line for line in lines[header + 1 :] if line[:1].isdigit()]) == MOST_SHARDS
    assert len([line for line in render_shard_sizes(sizes[:32]).splitlines() if line[:1].isdigit()]) == 32
