"""Directory listings of the files that Spark's file stream reads. Compare `tests/spark/test_file_source_planner.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slackwater.connectors.files import directory_listing
from slackwater.connectors.files.directory_listing import DirectoryListing, is_hidden, to_uri


def create_files(home: Path, *names: str) -> None:
    for name in names:
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def list_relative_paths(home: Path, pattern: str = "", **more: object) -> list[str]:
    listed = DirectoryListing(f"{home}/{pattern}" if pattern else str(home), **more)  # type: ignore[arg-type]
    return sorted(str(Path(p).relative_to(home)) for p in listed.files())


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a", ["a"]),
        ("{a,b}", ["a", "b"]),
        ("/x/{a,b{1,2}}/c", ["/x/a/c", "/x/b1/c", "/x/b2/c"]),
        ("{a/b,c}*{1,2}", ["a/b*1", "a/b*2", "c*1", "c*2"]),
        ("a,b}", ["a,b}"]),
        (r"\{a,b\}", [r"\{a,b\}"]),
        ("{,x}y", ["y", "xy"]),
    ],
)
def test_braces_in_a_pattern_expand_to_alternatives(pattern: str, expected: list[str]) -> None:
    assert directory_listing.expand_braces(pattern) == expected


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.json", ["a.json", ".json", "_x.json"], ["a.jsonl", "xjson"]),
        ("?", ["a", "ä", "\n"], ["", "ab"]),
        ("[a-c]x", ["ax", "cx"], ["dx", "-x"]),
        ("[!a]x", ["bx"], ["ax"]),
        ("[^a]x", ["bx"], ["ax"]),
        ("x[.]y", ["x.y"], ["xay"]),
        (r"\*\[a\]", ["*[a]"], ["xa"]),
        ("a+(b)|$^", ["a+(b)|$^"], ["aab"]),
        ("{a*,b}c", ["axc", "bc"], ["xc"]),
    ],
)
def test_glob_patterns_match_as_in_hadoop(pattern: str, yes: list[str], no: list[str]) -> None:
    assert [n for n in [*yes, *no] if directory_listing.matches_pattern(pattern, n)] == yes


@pytest.mark.parametrize("pattern", ["{a", "[a", "a\\", "[z-a]"])
def test_invalid_glob_pattern_is_rejected(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"not closed|escapes nothing|is not a pattern"):
        directory_listing.matches_pattern(pattern, "a")


def test_hidden_file_names_are_recognized() -> None:
    hidden = ["_x", ".x", "x._COPYING_", "_metadata", "_common_metadata", "_temporary", "_spark_metadata"]
    assert [n for n in [*hidden, "x", "_a=1", "x_", "x.COPYING"] if is_hidden(n)] == hidden


def test_folders_patterns_and_single_files_are_listed(tmp_path: Path) -> None:
    create_files(
        tmp_path,
        "in/b.json",
        "in/a.json",
        "in/_h.json",
        "in/.x.json",
        "in/sub/c.json",
        "in/deep/er/d.json",
        "out/e.json",
    )
    assert list_relative_paths(tmp_path, "in") == ["in/a.json", "in/b.json"]
    assert list_relative_paths(tmp_path, "in/*.json") == ["in/a.json", "in/b.json"]
    assert list_relative_paths(tmp_path, "in/*") == ["in/a.json", "in/b.json", "in/sub/c.json"]
    assert list_relative_paths(tmp_path, "{in,out}") == ["in/a.json", "in/b.json", "out/e.json"]
    assert list_relative_paths(tmp_path, "*/*.json") == ["in/a.json", "in/b.json", "out/e.json"]
    assert list_relative_paths(tmp_path, "in/a.json") == ["in/a.json"]
    assert list_relative_paths(tmp_path, "in/_h.json") == []
    assert (
        list_relative_paths(tmp_path, "nowhere/*")
        == list_relative_paths(tmp_path, "nowhere")
        == list_relative_paths(tmp_path, "in/a.json/*")
        == []
    )
    assert len(list_relative_paths(tmp_path, "in", recursive=True)) == 4
    assert list_relative_paths(tmp_path, "in", recursive=True, only="[cd].*") == ["in/deep/er/d.json", "in/sub/c.json"]


def test_partition_folders_are_listed_and_mixed_folders_are_rejected(tmp_path: Path) -> None:
    create_files(tmp_path, "t/day=1/a", "t/day=2/b", "t/day=2/hour=3/c", "t/d", "t/day=9/_temporary/x", "t/empty/_x")
    assert list_relative_paths(tmp_path, "t") == ["t/d", "t/day=1/a", "t/day=2/b", "t/day=2/hour=3/c"]
    assert list_relative_paths(tmp_path, "t/day=1") == ["t/day=1/a"]
    assert list_relative_paths(tmp_path, "t/day=2") == ["t/day=2/b", "t/day=2/hour=3/c"]
    create_files(tmp_path, "t/other/e")
    with pytest.raises(ValueError, match=r'"\S+/t" and "\S+/t/other" cannot be read as one table'):
        list_relative_paths(tmp_path, "t")


def test_uncommitted_files_of_a_spark_stream_are_not_listed(tmp_path: Path) -> None:
    create_files(tmp_path, "t/a", "t/b", "t/c", "t/d", "t/_spark_metadata/.3.crc")

    def log(number: str, *actions: tuple[str, str]) -> None:
        lines = [json.dumps({"path": to_uri(f"{tmp_path}/t/{name}"), "action": action}) for name, action in actions]
        (tmp_path / "t" / "_spark_metadata" / number).write_text("\n".join(["v1", *lines]))

    log("0", ("x", "add"))  # replaced by the compact log
    log("1.compact", ("a", "add"), ("b", "add"))
    log("2", ("c", "add"), ("b", "delete"))
    assert list_relative_paths(tmp_path, "t") == ["t/a", "t/c"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/in/a b.json", "file:///in/a%20b.json"),
        ("/in/100%", "file:///in/100%25"),
        ('/in/[x]{y}#?|^`"<>\\', "file:///in/%5Bx%5D%7By%7D%23%3F%7C%5E%60%22%3C%3E%5C"),
        ("/in/k=1;v,w&x+y$z@!~*'()-_.:", "file:///in/k=1;v,w&x+y$z@!~*'()-_.:"),
        ("/in/ä名\u00a0\u2028", "file:///in/ä名%C2%A0%E2%80%A8"),
    ],
)
def test_path_is_converted_to_the_uri_that_spark_writes(path: str, expected: str) -> None:
    assert to_uri(path) == expected


def test_symbolic_links_are_followed(tmp_path: Path) -> None:
    create_files(tmp_path, "real/a")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file").symlink_to(tmp_path / "real" / "a")
    (tmp_path / "in" / "folder").symlink_to(tmp_path / "real")
    assert list_relative_paths(tmp_path, "in") == ["in/file"]
    assert list_relative_paths(tmp_path, "in", recursive=True) == ["in/file", "in/folder/a"]
