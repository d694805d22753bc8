"""Documentation pages: relative links and anchors resolve, and the README shows the files of examples/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.markdown_pages import FENCE, find_heading_anchors

from slackwater.config import toml

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    p.relative_to(ROOT) for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]
)
LINK = re.compile(r"\[[^\]\n]*(?:\n[^\]\n]*)?\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")


def find_links(text: str) -> Iterator[str]:
    """Yield the targets of the links on a page, without code blocks."""
    prose = re.sub(r"`[^`\n]*`", "`", FENCE.sub("", text))
    yield from LINK.findall(prose)
    yield from re.findall(r"^\[[^\]]+\]:\s+(\S+)", prose, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_relative_link_and_anchor_resolves(page: Path) -> None:
    dead = []
    for link in find_links((ROOT / page).read_text()):
        if re.match(r"[a-z][a-z+.-]*:", link):
            continue
        path, _, anchor = link.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        if not file.exists() or (
            anchor and file.suffix == ".md" and anchor not in find_heading_anchors(file.read_text())
        ):
            dead.append(link)
    assert not dead, f"{page}: these links lead nowhere: {dead}"


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    """A page names a module by its path or by the end of its path, such as `state/commit.py`."""
    paths = re.findall(r"`([a-z_]+(?:/[a-z_0-9]+)+\.py)`", (ROOT / page).read_text())
    folders = ("src/slackwater", "tests", "benchmarks", "docgen", "deploy", "examples", "tools")
    files = ["/" + f.relative_to(ROOT).as_posix() for folder in folders for f in (ROOT / folder).rglob("*.py")]
    assert [path for path in paths if not any(file.endswith(f"/{path}") for file in files)] == []


def test_links_outside_code_and_anchors_are_extracted() -> None:
    text = "see [a](b.md#c-d) and [two\nlines](e.md)\n```\n[no](code.md)\n```\n`[no](code.md)`\n[ref]: f.md\n"
    assert list(find_links(text)) == ["b.md#c-d", "e.md", "f.md"]
    assert find_heading_anchors("# A `b`: c, d\n## x\n## x\n") == {"a-b-c-d", "x", "x-1"}


def find_readme_code_blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    return [text for name, text in fenced if name == language]


def test_first_pipeline_of_readme_equals_sessions_example() -> None:
    folder = ROOT / "examples" / "sessions"
    assert find_readme_code_blocks("toml")[0] == (folder / "sessions.toml").read_text()
    assert find_readme_code_blocks("python")[0] == (folder / "sessions.py").read_text()
    events = folder / "data" / "events"
    assert (
        find_readme_code_blocks("json")[0]
        == (events / "morning.jsonl").read_text() + (events / "noon.jsonl").read_text()
    )
    assert sorted(p.name for p in events.iterdir()) == ["morning.jsonl", "noon.jsonl"]
    assert toml.load(folder / "sessions.toml").name == "user-sessions"


def test_readme_starts_with_quickstart_commands() -> None:
    first, second, third, *_ = find_readme_code_blocks("")
    assert [line.split("#")[0].split() for line in first.splitlines()][:2] == [["make", "demo"], ["make", "test"]]
    assert second == "source .venv/bin/activate\n"
    assert (ROOT / third.split()[1] / "sessions.toml").exists()
