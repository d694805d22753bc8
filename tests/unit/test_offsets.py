"""Where sources go on: as a commit stores it, as types, and back; and what no commit of ours holds is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slackwater.core.offsets import ChangedFiles, FilesRead, KafkaOffsets, parsed
from slackwater.state.commit import SourceRecord

FILES = {"segments": ["offsets/000000007-0c4acc5e4059-ab.jsonl", "3f2a"], "count": 3}


@pytest.mark.parametrize(
    ("stored", "known"),
    [
        (None, None),
        (FILES, FilesRead(tuple(FILES["segments"]), 3)),  # type: ignore[arg-type]
        (
            FILES | {"changed": {"count": 2, "last": ["/a"]}},
            FilesRead(tuple(FILES["segments"]), 3, ChangedFiles(2, ("/a",))),
        ),  # type: ignore[arg-type]
        ({"clicks": {"0": 1200, "1": 0}}, KafkaOffsets({"clicks": {"0": 1200, "1": 0}})),
        ({}, KafkaOffsets()),
        ({"segments": {"0": 4}}, KafkaOffsets({"segments": {"0": 4}})),  # a topic of this name
    ],
)
def test_what_is_stored_is_read_and_stored_again_as_it_was(stored: Any, known: Any) -> None:
    record = SourceRecord.model_validate({"offsets": stored})
    assert record.offsets == known
    assert json.loads(record.model_dump_json())["offsets"] == stored
    assert record.model_dump()["offsets"] == stored
    assert SourceRecord(offsets=known) == record, "a record is made of either"


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ([1], "offsets are no table"),
        ("earliest", "offsets are no table"),
        ({"segments": ["../x"]}, "'../x' is no name of a list"),
        ({"segments": [7]}, "'7' is no name of a list"),
        ({"segments": [], "count": -1}, "'-1' is no count of files"),
        ({"segments": [], "count": True}, "'True' is no count of files"),
        ({"segments": [], "changed": {"last": [1]}}, "changed files are no names"),
        ({"segments": [], "changed": 3}, "changed files are no names"),
        ({"clicks": 3}, "'clicks' has no offsets by partition"),
        ({"clicks": {"0": "many"}}, "clicks-0 has no offset"),
        ({"clicks": {"0": True}}, "clicks-0 has no offset"),
        ({"clicks": {"zero": 1}}, "clicks-zero has no offset"),
        ({"clicks": {"0": -1}}, "clicks-0 has an offset that no topic has"),
        ({"clicks": {"0": 1 << 63}}, "clicks-0 has an offset that no topic has"),
    ],
)
def test_what_no_commit_holds_is_refused(stored: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parsed(stored)


def test_partitions_are_found_by_number_and_lists_get_other_names() -> None:
    known = KafkaOffsets({"clicks": {"0": 0, "1": 7}})
    assert (known.of("clicks", 0), known.of("clicks", "1"), known.of("clicks", 2), known.of("x", 0)) == (
        0,
        7,
        None,
        None,
    )
    assert list(known.each()) == [("clicks", "0", 0), ("clicks", "1", 7)]
    assert known.lists == ()
    assert known.renamed(str.upper) == known
    assert FilesRead(("a", "b"), 2).renamed(str.upper) == FilesRead(("A", "B"), 2)
    assert known.rows() == {"clicks-0": "0", "clicks-1": "7"}
    assert FilesRead(("a",), 2).rows() == {"files": "2"}
