"""Convert offsets of sources between their stored form and their types, and refuse invalid offsets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slackwater.core.offset_base import ChangedFiles, OffsetChange, Offsets
from slackwater.core.offsets import FileOffsets, KafkaOffsets, LakeTableOffsets, parse_offsets
from slackwater.state.commit import SourceRecord

FILES = {"segments": ["offsets/000000007-0c4acc5e4059-ab.jsonl", "3f2a"], "count": 3}


@pytest.mark.parametrize(
    ("stored", "offsets"),
    [
        (None, None),
        (FILES, FileOffsets(tuple(FILES["segments"]), 3)),  # type: ignore[arg-type]
        (
            FILES | {"changed": {"count": 2, "last": ["/a"]}},
            FileOffsets(tuple(FILES["segments"]), 3, ChangedFiles(2, ("/a",))),
        ),  # type: ignore[arg-type]
        ({"clicks": {"0": 1200, "1": 0}}, KafkaOffsets({"clicks": {"0": 1200, "1": 0}})),
        ({}, KafkaOffsets()),
        ({"segments": {"0": 4}}, KafkaOffsets({"segments": {"0": 4}})),  # a topic with the name "segments"
    ],
)
def test_stored_offsets_survive_a_round_trip(stored: Any, offsets: Any) -> None:
    record = SourceRecord.model_validate({"offsets": stored})
    assert record.offsets == offsets
    assert json.loads(record.model_dump_json())["offsets"] == stored
    assert record.model_dump()["offsets"] == stored
    assert SourceRecord(offsets=offsets) == record, "a record is made of either"


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ([1], "offsets are not a JSON object"),
        ("earliest", "offsets are not a JSON object"),
        ({"segments": ["../x"]}, "'../x' is not the name of a list"),
        ({"segments": [7]}, "'7' is not the name of a list"),
        ({"segments": [], "count": -1}, "'-1' is not a number of files"),
        ({"segments": [], "count": True}, "'True' is not a number of files"),
        ({"segments": [], "changed": {"last": [1]}}, "changed files are not names"),
        ({"segments": [], "changed": 3}, "changed files are not names"),
        ({"clicks": 3}, "'clicks' has no offsets by partition"),
        ({"clicks": {"0": "many"}}, "clicks-0 has no offset"),
        ({"clicks": {"0": True}}, "clicks-0 has no offset"),
        ({"clicks": {"zero": 1}}, "clicks-zero has no offset"),
        ({"clicks": {"0": -1}}, "clicks-0 has an invalid offset"),
        ({"clicks": {"0": 1 << 63}}, "clicks-0 has an invalid offset"),
    ],
)
def test_invalid_stored_offsets_are_refused_with_a_reason(stored: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_offsets(stored)


def test_offsets_are_looked_up_by_partition_and_lists_can_be_renamed() -> None:
    offsets = KafkaOffsets({"clicks": {"0": 0, "1": 7}})
    assert (
        offsets.next_offset("clicks", 0),
        offsets.next_offset("clicks", "1"),
        offsets.next_offset("clicks", 2),
        offsets.next_offset("x", 0),
    ) == (
        0,
        7,
        None,
        None,
    )
    assert list(offsets.entries()) == [("clicks", "0", 0), ("clicks", "1", 7)]
    assert offsets.lists == ()
    assert offsets.with_list_names(str.upper) == offsets
    assert FileOffsets(("a", "b"), 2).with_list_names(str.upper) == FileOffsets(("A", "B"), 2)
    assert offsets.positions() == {"clicks-0": "0", "clicks-1": "7"}
    assert FileOffsets(("a",), 2).positions() == {"files": "2"}


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        (FileOffsets(("a",), 1), "after 1 file"),
        (KafkaOffsets({"t": {"0": 4, "1": 5}}), "from offsets t-0:4 t-1:5"),
        (KafkaOffsets({"t": {str(p): p for p in range(10)}}), " t-7:7 and 2 more partitions"),
        (LakeTableOffsets("id", 12), "after version 12"),
        (LakeTableOffsets("id", 12, files=3, content=True), "after 3 files of the content of version 12"),
        (LakeTableOffsets("id"), "from its first version"),
        (LakeTableOffsets(files=0, content=True), "from nothing"),
    ],
)
def test_offsets_have_a_human_readable_description(offsets: Offsets, text: str) -> None:
    assert offsets.describe().endswith(text)


TABLE = LakeTableOffsets("id", 12)


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        (None, FileOffsets(), [("files", "0 files read", "none read", "unchanged")]),
        (FileOffsets(("a",), 2), FileOffsets(), [("files", "2 files read", "none read", "2 files again", True)]),
        (
            KafkaOffsets({"t": {"0": 2000, "2": 5, "10": 7}}),
            KafkaOffsets({"t": {"10": 8, "0": 0, "2": 5, "3": 1}}),
            [
                ("t-0", "2000", "0", "2,000 again", True),
                ("t-2", "5", "5", "unchanged"),
                ("t-3", "never read", "1"),
                ("t-10", "7", "8", "1 skipped", False, True),
            ],
        ),
        (FileOffsets(("a",), 2), KafkaOffsets({"t": {"0": 1}}), [("t-0", "never read", "1")]),
        (None, LakeTableOffsets(files=0, content=True), [("versions", "never read", "current content")]),
        (
            TABLE,
            LakeTableOffsets(files=0, content=True),
            [("versions", "version 12", "current content", "all rows again", True)],
        ),
        (TABLE, TABLE, [("versions", "version 12", "after version 12")]),
        (TABLE, LakeTableOffsets("id", 14), [("versions", "version 12", "after version 14", "", False, True)]),
    ],
)
def test_changes_between_two_offsets_are_described(before: Offsets | None, after: Offsets, changes: list[Any]) -> None:
    assert after.changes(before) == [OffsetChange(*change) for change in changes]
