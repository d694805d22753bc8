"""Test the page of a pipeline with several stages, and the page of each stage, over HTTP from a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.three_stage_pipeline import TEXT, run_three_stage_pipeline
from tests.support.ui_page_client import HtmlTagChecker, fetch_page
from tests.support.ui_pipeline_states import open_page_source
from tests.support.why_command_fixtures import NOON, clock_time_to_microseconds

from slackwater.cli.web_commands import load_page_sources, save_page
from slackwater.ui import pages
from slackwater.ui.page_model import load_model
from slackwater.ui.page_server import UiServer, serve_pages
from slackwater.ui.pages import PageLocation


@pytest.fixture(scope="module")
def three_stage_config_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_three_stage_pipeline(tmp_path_factory.mktemp("stages"))


@pytest.fixture(params=["config", "state alone"])
def ui_page_server(request: pytest.FixtureRequest, three_stage_config_file: Path) -> Iterator[UiServer]:
    page_sources = (
        [open_page_source(three_stage_config_file)]
        if request.param == "config"
        else load_page_sources(str(three_stage_config_file.parent / "state"))
    )
    running = serve_pages(page_sources, 0)
    yield running
    running.stop()


def fetch_block_json(page: UiServer, path: str) -> dict[str, object]:
    answer = fetch_page(page, path)
    assert answer.status == 200, answer.text
    return json.loads(answer.text)  # type: ignore[no-any-return]


def test_main_page_links_to_the_page_of_every_stage(ui_page_server: UiServer) -> None:
    text = fetch_page(ui_page_server, "/").text
    links = [a["href"] for tag, a in HtmlTagChecker(text).found if tag == "a"]
    for name, blocks in (("sessions", "closing"), ("minutes", "closing"), ("seen", "joins")):
        assert f"/stage/{name}/" in links
        stage_page = fetch_page(ui_page_server, f"/stage/{name}/")
        assert stage_page.status == 200
        HtmlTagChecker(stage_page.text)
        assert f'id="{blocks}-title"' in stage_page.text
        assert 'id="pace-title"' not in stage_page.text
        assert fetch_page(ui_page_server, f"/stage/{name}/", If_None_Match=stage_page.headers["etag"]).status == 304
        for one in pages.STAGE_BLOCKS:
            assert fetch_page(ui_page_server, f"/stage/{name}/ui/{one}").status == 200
            is_there = fetch_block_json(ui_page_server, f"/stage/{name}/ui/{one}.json") is not None
            assert is_there is (one not in ("closing", "joins") or one == blocks)


def test_page_names_the_stages_and_the_source_that_hold_back_a_stage(ui_page_server: UiServer) -> None:
    holders = {
        s: fetch_block_json(ui_page_server, f"/stage/{s}/ui/top.json")["held"] for s in ("sessions", "minutes", "seen")
    }
    root = 'source "orders", partition o-1 (quiet for 45 s, since 2024-03-01 12:00:00Z)'
    assert str(holders["sessions"]).endswith(f"; {root.replace(' (', ' holds it (')}.")
    assert str(holders["minutes"]).endswith(
        f'; stage "minutes" waits for stage "sessions", whose watermark is held by {root}.'
    )
    assert str(holders["seen"]).endswith(
        f'; stage "seen" waits for stage "minutes", which waits for stage "sessions", whose watermark is held by {root}.'
    )
    assert fetch_block_json(ui_page_server, "/ui/top.json")["held"] == holders["seen"]


def test_watermark_chart_has_one_lane_per_stage_input(ui_page_server: UiServer) -> None:
    def lanes(path: str) -> list[tuple[object, ...]]:
        drawn = fetch_block_json(ui_page_server, f"{path}/ui/watermark.json")["lanes"]
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
    text = fetch_page(ui_page_server, "/stage/seen/ui/watermark").text
    assert "stage minutes" in text


def test_window_closing_histogram_links_to_the_keys_of_the_stage(ui_page_server: UiServer) -> None:
    closing = fetch_block_json(ui_page_server, "/stage/sessions/ui/closing.json")
    assert (closing["what"], closing["total"]) == ("sessions", 2)
    text = fetch_page(ui_page_server, "/stage/sessions/").text
    (link, *_) = [
        str(a["href"]) for tag, a in HtmlTagChecker(text).found if tag == "a" and "/closing?" in str(a.get("href"))
    ]
    assert link.startswith("/stage/sessions/closing?from=")
    text = fetch_page(ui_page_server, link).text
    (link, *_) = [
        str(a["href"]) for tag, a in HtmlTagChecker(text).found if tag == "a" and "/key?" in str(a.get("href"))
    ]
    assert link == "/stage/sessions/key?user=u2"
    one = fetch_page(ui_page_server, link).text
    assert "1 open session" in one and "its result goes to stage" in one
    assert fetch_block_json(ui_page_server, "/stage/sessions/ui/key.json?user=u1")["of_sessions"] is True
    assert fetch_block_json(ui_page_server, "/stage/minutes/ui/key.json?user=u1")["of_sessions"] is False
    assert fetch_block_json(ui_page_server, "/ui/key.json?user=u1")["of_sessions"] is False, (
        "of the last stage with windows"
    )
    assert fetch_page(ui_page_server, "/stage/seen/key?user=u1").status == 400


def test_row_counts_and_state_sizes_are_shown_per_stage(ui_page_server: UiServer) -> None:
    rows = {
        s: fetch_block_json(ui_page_server, f"/stage/{s}/ui/rows.json")["total"]
        for s in ("sessions", "minutes", "seen")
    }
    assert [(r["rows_in"], r["used"], r["unaccounted"]) for r in rows.values()] == [(4, 4, 0), (1, 1, 0), (4, 4, 0)]  # type: ignore[index]
    whole = fetch_block_json(ui_page_server, "/ui/size.json")["commits"]
    each = [fetch_block_json(ui_page_server, f"/stage/{s}/ui/size.json")["commits"] for s in rows]
    assert whole[-1]["bytes"] == sum(e[-1]["bytes"] for e in each) > 0  # type: ignore[index]
    stages = fetch_block_json(ui_page_server, "/ui/stages.json")
    assert [(s["name"], s["open"], s["rows_in"]) for s in stages] == [
        ("sessions", 2, 4),
        ("minutes", 0, 1),
        ("seen", 3, 4),
    ]  # type: ignore[index]


def test_unknown_stage_returns_404(ui_page_server: UiServer) -> None:
    for path in ("/stage/nobody/", "/stage/~9/", "/stage/nobody/ui/top.json", "/stage/nobody/ui/events", "/stage/"):
        assert fetch_page(ui_page_server, path).status == 404, path


def test_an_older_commit_of_a_stage_is_shown(ui_page_server: UiServer) -> None:
    epoch_page = fetch_page(ui_page_server, "/stage/sessions/epoch/0")
    assert epoch_page.status == 200
    assert "stays at this commit" in epoch_page.text


def test_stages_with_names_not_valid_in_a_url_are_addressed_by_number(tmp_path: Path) -> None:
    text = TEXT
    for name, other in (("sessions", "a/b ?&<i>"), ("minutes", "..")):
        text = text.replace(f'"{name}"', f'"{other}"')
    page_source = open_page_source(run_three_stage_pipeline(tmp_path, text))
    running = serve_pages([page_source], 0)
    try:
        for address, name in (("~0", "a/b ?&amp;&lt;i&gt;"), ("~1", ".."), ("seen", "seen")):
            stage_page = fetch_page(running, f"/stage/{address}/")
            assert stage_page.status == 200
            assert name in stage_page.text
            assert "<i>" not in stage_page.text
    finally:
        running.stop()


def test_saved_page_contains_and_links_all_stages(three_stage_config_file: Path, tmp_path: Path) -> None:
    save_page([open_page_source(three_stage_config_file)], tmp_path / "x.html")
    text = (tmp_path / "x.html").read_text()
    tags = HtmlTagChecker(text).found
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


def test_stage_page_model_has_the_watermark_and_the_reason_for_waiting(three_stage_config_file: Path) -> None:
    seen = load_model(open_page_source(three_stage_config_file), NOON, stage="minutes")
    assert (seen.stage, seen.pace, seen.joins) == ("minutes", None, None)
    assert seen.watermark.watermark_us == clock_time_to_microseconds("9:49")
    assert (
        "waits for stage &#34;sessions&#34;"
        in pages.render_page(seen, PageLocation("/stage/minutes", home="")).decode()
    )
