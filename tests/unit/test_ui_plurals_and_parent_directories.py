"""Test the nouns after counts on the page, and paths with `..`."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackwater.connectors.files.directory_listing import DirectoryListing
from slackwater.ui.blocks.upcoming_closes import CloseBin, UpcomingCloses, count_windows, draw_closes


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "sessions", "1 open session"),
        (2000, "sessions", "2,000 open sessions"),
        (1, "keys in windows", "1 key in open windows"),
        (2, "keys in windows", "2 keys in open windows"),
    ],
)
def test_open_window_noun_is_singular_for_one_and_plural_otherwise(count: int, noun: str, text: str) -> None:
    assert count_windows(count, noun) == text
    drawn = draw_closes(UpcomingCloses(noun, None, count, 10, (CloseBin(0, 10, count),)), None)
    assert f"{text} {'closes' if count == 1 else 'close'} from" in drawn


def test_parent_directories_in_a_path_are_resolved_before_links(tmp_path: Path) -> None:
    """The target of a symbolic link before the dots does not matter, as in Spark."""
    for name in ("in/a.json", "elsewhere/b.json"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for query in ("in/*.json", "elsewhere/../in/*.json", "link/../in/*.json", "./in/./a.json", "nowhere/../in"):
        assert list(DirectoryListing(f"{tmp_path}/{query}").files()) == [f"{tmp_path}/in/a.json"], query
