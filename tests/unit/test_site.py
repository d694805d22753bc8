"""The docs site builds without a warning, its navigation lists every page, and the examples on the pages are valid."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from docgen import learn_page_pictures
from tests.support.local_pipeline_script import MicroBatch, run_local_script
from tests.support.markdown_pages import find_heading_anchors

from slackwater.cli.check import check_file
from slackwater.config import toml
from slackwater.core.humanize import format_iso

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md"))


def page_code_blocks(page: str, language: str) -> list[str]:
    fenced = re.findall(r"^```([\w ]*)\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    return [text for name, text in fenced if name == language]


def find_page_configs() -> Iterator[tuple[str, int]]:
    """Yield the complete configs on the pages, which have a target. Skip the custom connector of one page."""
    for page in PAGES:
        for n, text in enumerate(page_code_blocks(page, "toml")):
            if re.search(r"^\[target\]", text, re.MULTILINE) and 'kind = "journal"' not in text:
                yield page, n


# -- the site --------------------------------------------------------------------------------------------------------


class _PageTextParser(HTMLParser):
    """Parser for the text of a page without code, and for the URLs that it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.texts, self.addresses, self.open = list[str](), list[str](), list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        fetched = tag != "a"
        self.addresses += [v for k, v in attrs if fetched and k in ("src", "href") and v]

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"code", "pre", "script", "style"} & set(self.open):
            self.texts.append(data)


@pytest.fixture(scope="module")
def site_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does. A warning fails the build."""
    home = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, home / "docs")
    shutil.copy(ROOT / "zensical.toml", home)
    build = build_site(home)
    assert build.returncode == 0, build.stdout + build.stderr
    assert "No issues found" in build.stdout + build.stderr
    return home / "site"


def build_site(home: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    return subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=300)


def test_site_renders_every_page_without_unparsed_markdown(site_folder: Path) -> None:
    for page in PAGES:
        html = _PageTextParser()
        html.feed((site_folder / page).with_suffix(".html").read_text())
        text = "".join(html.texts)
        assert "|---" not in text, f"{page}: a table needs an empty line before it"
        assert not re.search(r"^- ", text, re.MULTILINE), f"{page}: a list needs an empty line before it"
        assert not [a for a in html.addresses if re.match(r"https?://|//", a)], f"{page} asks another host"


def test_broken_link_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# A\n[b](nowhere.md) [c](#nothing)\n")
    (tmp_path / "zensical.toml").write_text('[project]\nsite_name = "x"\n')
    build = build_site(tmp_path)
    assert build.returncode != 0
    assert "2 issues found" in build.stdout + build.stderr


def test_every_page_is_in_the_navigation() -> None:
    def pages(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        for one in entry if isinstance(entry, list) else entry.values() if isinstance(entry, dict) else ():
            yield from pages(one)

    def headings(entries: list[dict[str, Any]]) -> Iterator[str]:
        for entry in entries:
            for heading, inner in entry.items():
                if isinstance(inner, list):
                    yield heading
                    yield from headings(inner)

    project = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    named = list(pages(project["nav"]))
    assert sorted(named) == sorted(p for p in PAGES if not p.startswith("adr/"))
    assert [next(iter(part)) for part in project["nav"]] == [
        "Overview",
        "Start",
        "Learn",
        "How to",
        "Reference",
        "Explain",
    ]
    home = re.findall(r"^(?:##|###) (.*)$", (DOCS / "index.md").read_text(), re.MULTILINE)
    assert home == list(headings(project["nav"][1:])), "the home page and the navigation have the same headings"
    decisions = (DOCS / "decisions.md").read_text()
    assert [p for p in PAGES if p.startswith("adr/") and f"]({p})" not in decisions] == []


def test_version_of_the_site_builder_is_pinned() -> None:
    dev = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    assert [d for d in dev if re.fullmatch(r"zensical==[\d.]+", d)]


# -- what the pages show ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("page", "nth"), [*find_page_configs()], ids=lambda v: str(v))
def test_every_config_on_a_page_passes_check(
    page: str, nth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = page_code_blocks(page, "toml")[nth]
    for name in re.findall(r"\$\{(\w+)\}", text):
        monkeypatch.setenv(name, "postgresql://me:secret@127.0.0.1:1/shop" if "URL" in name else "127.0.0.1:1")
    for name in re.findall(r'(?:agg|class) = "(\w+):', text):
        (tmp_path / f"{name}.py").write_text(page_code_blocks(page, "python")[0])
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)
    file = tmp_path / "page.toml"
    file.write_text(text)
    check_file(file)
    assert ": ok — " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("page", "language", "word"),
    [
        ("from-spark.md", "python", "session_window"),
        ("from-flink.md", "sql", "SESSION("),
        ("from-ksqldb.md", "sql", "WINDOW SESSION"),
    ],
)
def test_migration_examples_use_the_same_gap_and_lateness(page: str, language: str, word: str) -> None:
    """The example for the other system and the config have the same gap and lateness."""
    theirs, ours = page_code_blocks(page, language)[0], tomllib.loads(page_code_blocks(page, "toml")[0])
    window = ours["transform"]["window"]
    assert word in theirs
    assert re.search(r"30'? minutes", theirs, re.IGNORECASE)
    assert re.search(r"1'? minute\b", theirs, re.IGNORECASE)
    assert (window["kind"], window["gap"], window["lateness"]) == ("session", "30m", "1m")


def test_kafka_start_page_shows_the_pipeline_of_the_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    """`test_docs.py` runs this pipeline on real services."""
    monkeypatch.setenv("KAFKA", "127.0.0.1:1")
    monkeypatch.setenv("WAREHOUSE_URL", "postgresql://127.0.0.1:1/shop")
    readme = re.findall(r"^```toml\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)[1]
    assert toml.loads(page_code_blocks("start-kafka.md", "toml")[0]) == toml.loads(readme)


@cache
def _emitted_rows(corrected: bool) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the final rows of a target that replaces rows."""
    step = learn_page_pictures.build_reopening_window() if corrected else learn_page_pictures.build_session_window()
    script = [MicroBatch({"clicks": [event]}) for event in learn_page_pictures.load_click_events()]
    result = run_local_script(
        step, script, {"user": "string", "page": "string"}, ("clicks",), clock_us=learn_page_pictures.CLOCK
    )
    return {(r["user"], r["window_start"]): r for r in result.rows}


@pytest.mark.parametrize("corrected", [False, True])
def test_tables_on_the_learn_page_match_the_emitted_rows(corrected: bool) -> None:
    names, *lines = [line.split() for line in page_code_blocks("learn.md", "text")[corrected].splitlines()]
    held = _emitted_rows(corrected).values()
    shown = [[str(format_iso(r[n]) if n.startswith("window") else r[n]) for n in names] for r in held]
    assert sorted(shown) == sorted(lines)


def test_learn_page_uses_the_events_and_window_of_its_pictures() -> None:
    assert page_code_blocks("learn.md", "json") == [learn_page_pictures.EVENTS.read_text()]
    assert len(learn_page_pictures.load_click_events()) == 10
    assert (
        toml.loads(page_code_blocks("learn.md", "toml")[0]).transform.window
        == learn_page_pictures.build_session_window()
    )
    page = (DOCS / "learn.md").read_text()
    for name in learn_page_pictures.PICTURES:
        assert f"](learn/{name})" in page
    seen, one, _ = learn_page_pictures.load_pages_after_events(5)
    assert format_iso(seen.watermark.watermark_us or 0) == "2024-03-01T09:26:00Z"
    assert [format_iso(w) for w in (one.bars[0].last_us or 0, one.bars[0].end_us, one.bars[0].cap_us or 0)] == [
        "2024-03-01T09:31:00Z",
        "2024-03-01T10:01:00Z",
        "2024-03-01T12:00:00Z",
    ]
    assert learn_page_pictures.load_pages_after_events(10)[0].rows.total.late == 1
    assert learn_page_pictures.load_pages_after_events(8, True)[1].bars[0].values["clicks"] == 4


def test_glossary_terms_are_unique_sorted_and_complete() -> None:
    rows = re.findall(r"^\| \*\*(.+?)\*\* \|(.*)\|$", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    terms = [term for term, _ in rows]
    assert len(terms) >= 55
    assert terms == sorted(set(terms))
    for term, cells in rows:
        assert [cell.strip() for cell in cells.split(" | ")].count("") == 0, term
        assert cells.count(" | ") == 3, term


def test_pages_exist_with_the_titles_that_users_search_for() -> None:
    titles = {(DOCS / p).read_text().splitlines()[0].removeprefix("# ") for p in PAGES}
    expected = {
        "No output yet",
        "Late rows and dead letters",
        "Change a running pipeline",
        "Replay dead letters",
        "Test a pipeline",
        "Alert on lag",
        "Upgrade",
    }
    assert expected <= titles


def test_docs_links_in_the_source_code_have_targets() -> None:
    """Each link in the source code names an existing page and heading."""
    named = set[tuple[str, str]]()
    for path in (ROOT / "src").rglob("*.py"):
        named |= set(re.findall(r"docs/([\w/-]+\.md)#([\w-]+)", path.read_text()))
    assert named
    for page, anchor in named:
        assert anchor in find_heading_anchors((DOCS / page).read_text()), f"docs/{page}#{anchor}"


def read_command_reference() -> str:
    """Return the sections of all commands in one text."""
    return "\n".join(path.read_text() for path in sorted((DOCS / "commands").glob("*.md")))


def test_commands_in_code_blocks_exist() -> None:
    """Every `slackwater …` in a block of a how-to or start page is a command with these options."""
    reference = read_command_reference()
    for page in [p for p in PAGES if p.startswith(("how-", "start-"))] + ["upgrade.md", "learn.md"]:
        for block in page_code_blocks(page, "") + re.findall(
            r"^    ```\n(.*?)^    ```$", (DOCS / page).read_text(), re.S | re.M
        ):
            for line in block.splitlines():
                words = line.strip().split()
                if words[:1] != ["slackwater"]:
                    continue
                name = next(n for n in (" ".join(words[:3]), " ".join(words[:2])) if f"## {n}\n" in reference)
                section = reference.split(f"## {name}\n")[1].split("\n## ")[0]
                for option in (w for w in words if w.startswith("--")):
                    assert option in section, f"{page}: {line.strip()}"


def test_commands_in_inline_code_exist() -> None:
    """Every `slackwater …` within a line of any page is a command with these options, or a group of commands."""
    reference = read_command_reference()
    seen = 0
    for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))):
        for text in re.findall(r"`(slackwater [^`\n]+)`", page.read_text()):
            words = text.split()
            if words[1] in ("COMMAND", "--help", "--install-completion") or f"## {' '.join(words)} " in reference:
                continue
            name = next((n for n in (" ".join(words[:3]), " ".join(words[:2])) if f"## {n}\n" in reference), None)
            assert name is not None, f"{page.name}: there is no command `{text}`"
            section = reference.split(f"## {name}\n")[1].split("\n## ")[0]
            for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", text):
                assert option in section, f"{page.name}: `{text}` has no {option}"
            seen += 1
    assert seen > 50


def test_example_events_are_json_lines() -> None:
    assert all(json.loads(line) for line in learn_page_pictures.EVENTS.read_text().splitlines())
