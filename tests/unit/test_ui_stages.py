"""Test the page of a pipeline with several stages, and the page of each stage, over HTTP from a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.page_client import TagChecker, get
from tests.support.three_stage_pipeline import TEXT, run_pipeline
from tests.support.ui_states import open_page_source
from tests.support.why_states import NOON, us

from slackwater.cli.web_commands import load_page_sources, save_page
from slackwater.ui import pages
from slackwater.ui.page_model import load_model
from slackwater.ui.page_server import UiServer, serve_pages
from slackwater.ui.pages import PageLocation


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_pipeline(tmp_path_factory.mktemp("stages"))


@pytest.fixture(params=["config", "state alone"])
def page(request: pytest.FixtureRequest, file: Path) -> Iterator[UiServer]:
    page_sources = (
        [open_page_source(file)] if request.param == "config" else load_page_sources(str(file.parent / "state"))
    )
    running = serve_pages(page_sources, 0)
    yield running
    running.stop()


def block(page: UiServer, path: str) -> dict[str, object]:
    answer = get(page, path)
    assert answer.status == 200, answer.text
    return json.loads(answer.text)  # type: ignore[no-any-return]


def test_main_page_links_to_the_page_of_every_stage(page: UiServer) -> None:
    text = get(page, "/").text
    links = [a["href"] for tag, a in TagChecker(text).found if tag == "a"]
    for name, blocks in (("sessions", "closing"), ("minutes", "closing"), ("seen", "joins")):
        assert f"/stage/{name}/" in links
        stage_page = get(page, f"/stage/{name}/")
        assert stage_page.status == 200
        TagChecker(stage_page.text)
        assert f'id="{blocks}-title"' in stage_page.text
        assert 'id="pace-title"' not in stage_page.text
        assert get(page, f"/stage/{name}/", If_None_Match=stage_page.headers["etag"]).status == 304
        for one in pages.STAGE_BLOCKS:
            assert get(page, f"/stage/{name}/ui/{one}").status == 200
            is_there = block(page, f"/stage/{name}/ui/{one}.json") is not None
            assert is_there is (one not in ("closing", "joins") or one == blocks)


def test_page_names_the_stages_and_the_source_that_hold_back_a_stage(page: UiServer) -> None:
    holders = {s: block(page, f"/stage/{s}/ui/top.json")["held"] for s in ("sessions", "minutes", "seen")}
    root = 'source "orders", partition o-1 (quiet for 45 s, since 2024-03-01 12:00:00Z)'
    assert str(holders["sessions"]).endswith(f"; {root.replace(' (', ' holds it (')}.")
    assert str(holders["minutes"]).endswith(
        f'; stage "minutes" waits for stage "sessions", whose watermark is held by {root}.'
    )
    assert str(holders["seen"]).endswith(
        f'; stage "seen" waits for stage "minutes", which waits for stage "sessions", whose watermark is held by {root}.'
    )
    assert block(page, "/ui/top.json")["held"] == holders["seen"]


def test_watermark_chart_has_one_lane_per_stage_input(page: UiServer) -> None:
    def lanes(path: str) -> list[tuple[object, ...]]:
        drawn = block(page, f"{path}/ui/watermark.json")["lanes"]
        assert isinstance(drawn, list)
        return [(x["source"], x["partition"], x["of_stage"], x["holds"]) for x in drawn]

    assert lanes("/stage/sessions") == [
        ("orders", None, False, False),
        ("orders", "o-0", False, False),
        ("orders", "o-1", False, True),
    ]
    assert lanes("/stage/minutes") == [("sessions", None, True, True)]
    assert lanes("/stage/seen") == [("clicks", None, False, False), ("minutes", None, True, True)]
    assert lanes("") == [*lanes("/stage/sessions"), ("clicks", None, False, False)]
    text = get(page, "/stage/seen/ui/watermark").text
    assert "stage minutes" in text


def test_window_closing_histogram_links_to_the_keys_of_the_stage(page: UiServer) -> None:
    closing = block(page, "/stage/sessions/ui/closing.json")
    assert (closing["what"], closing["total"]) == ("sessions", 2)
    text = get(page, "/stage/sessions/").text
    (link, *_) = [
        str(a["href"]) for tag, a in TagChecker(text).found if tag == "a" and "/closing?" in str(a.get("href"))
    ]
    assert link.startswith("/stage/sessions/closing?from=")
    text = get(page, link).text
    (link, *_) = [str(a["href"]) for tag, a in TagChecker(text).found if tag == "a" and "/key?" in str(a.get("href"))]
    assert link == "/stage/sessions/key?user=u2"
    one = get(page, link).text
    assert "1 open session" in one and "its result goes to stage" in one
    assert block(page, "/stage/sessions/ui/key.json?user=u1")["of_sessions"] is True
    assert block(page, "/stage/minutes/ui/key.json?user=u1")["of_sessions"] is False
    assert block(page, "/ui/key.json?user=u1")["of_sessions"] is False, "of the last stage with windows"
    assert get(page, "/stage/seen/key?user=u1").status == 400


def test_row_counts_and_state_sizes_are_shown_per_stage(page: UiServer) -> None:
    rows = {s: block(page, f"/stage/{s}/ui/rows.json")["total"] for s in ("sessions", "minutes", "seen")}
    assert [(r["rows_in"], r["used"], r["unaccounted"]) for r in rows.values()] == [(4, 4, 0), (1, 1, 0), (4, 4, 0)]  # type: ignore[index]
    whole = block(page, "/ui/size.json")["commits"]
    each = [block(page, f"/stage/{s}/ui/size.json")["commits"] for s in rows]
    assert whole[-1]["bytes"] == sum(e[-1]["bytes"] for e in each) > 0  # type: ignore[index]
    stages = block(page, "/ui/stages.json")
    assert [(s["name"], s["open"], s["rows_in"]) for s in stages] == [
        ("sessions", 2, 4),
        ("minutes", 0, 1),
        ("seen", 3, 4),
    ]  # type: ignore[index]


def test_unknown_stage_returns_404(page: UiServer) -> None:
    for path in ("/stage/nobody/", "/stage/~9/", "/stage/nobody/ui/top.json", "/stage/nobody/ui/events", "/stage/"):
        assert get(page, path).status == 404, path


def test_an_older_commit_of_a_stage_is_shown(page: UiServer) -> None:
    epoch_page = get(page, "/stage/sessions/epoch/0")
    assert epoch_page.status == 200
    assert "stays at this commit" in epoch_page.text


def test_stages_with_names_not_valid_in_a_url_are_addressed_by_number(tmp_path: Path) -> None:
    text = TEXT
    for name, other in (("sessions", "a/b ?&<i>"), ("minutes", "..")):
        text = text.replace(f'"{name}"', f'"{other}"')
    page_source = open_page_source(run_pipeline(tmp_path, text))
    running = serve_pages([page_source], 0)
    try:
        for address, name in (("~0", "a/b ?&amp;&lt;i&gt;"), ("~1", ".."), ("seen", "seen")):
            stage_page = get(running, f"/stage/{address}/")
            assert stage_page.status == 200
            assert name in stage_page.text
            assert "<i>" not in stage_page.text
    finally:
        running.stop()


def test_saved_page_contains_and_links_all_stages(file: Path, tmp_path: Path) -> None:
    save_page([open_page_source(file)], tmp_path / "x.html")
    text = (tmp_path / "x.html").read_text()
    tags = TagChecker(text).found
    ids = [a["id"] for _, a in tags if "id" in a and not a["id"].startswith(("round", "hatch"))]
    assert len(ids) == len(set(ids))
    links = [str(a["href"]) for tag, a in tags if tag == "a"]
    assert all(link.startswith("#") and link[1:] in [*ids, "main"] for link in links)
    assert {"#stage-sessions", "#stage-minutes", "#stage-seen"} <= set(links)
    record = json.loads(
        text[text.index('<pre class="record">') :]
        .split(">", 1)[1]
        .split("</pre>")[0]
        .replace("&#34;", '"')
        .replace("&gt;", ">")
    )
    assert list(record["stages"]) == ["sessions", "minutes", "seen"]


def test_stage_page_model_has_the_watermark_and_the_reason_for_waiting(file: Path) -> None:
    seen = load_model(open_page_source(file), NOON, stage="minutes")
    assert (seen.stage, seen.pace, seen.joins) == ("minutes", None, None)
    assert seen.watermark.watermark_us == us("9:49")
    assert (
        "waits for stage &#34;sessions&#34;"
        in pages.render_page(seen, PageLocation("/stage/minutes", home="")).decode()
    )
