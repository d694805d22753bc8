"""Status page in a real browser: headless Chromium, driven over the DevTools protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import three_stage_pipeline
from tests.support.browser import Browser, wait_until
from tests.support.case_selection import exhaustive
from tests.support.local_pipeline_script import MicroBatch
from tests.support.ui_pipeline_states import (
    draw_two_source_script,
    open_page_source,
    run_order_payment_join,
    run_two_source_pipeline,
    write_two_source_config,
)

from slackwater.cli.web_commands import load_page_sources
from slackwater.ui.page_server import UiServer, serve_pages


@pytest.fixture
def served_session_pipeline(tmp_path: Path) -> Iterator[tuple[UiServer, Path]]:
    home = tmp_path / "pipeline"
    home.mkdir()
    file = write_two_source_config("session", home)
    run_two_source_pipeline(file, draw_two_source_script(4, rows=120))
    running = serve_pages([open_page_source(file)], 0)
    yield running, file
    running.stop()


def test_page_renders_plots_follows_commits_and_links_to_keys(
    browser: Browser, served_session_pipeline: tuple[UiServer, Path]
) -> None:
    running, file = served_session_pipeline
    home = f"http://127.0.0.1:{running.port}"
    browser.open_page(home + "/")
    assert "law" in browser.evaluate_script("document.title")
    # all rows are accounted for, but nothing is green, because the runner is not active
    assert browser.evaluate_script("document.querySelector('#top .sentence').classList.contains('still')")
    assert browser.evaluate_script("document.querySelectorAll('svg.plot').length") >= 8
    # throughput, backlog, and rows that more lateness would have kept
    assert browser.evaluate_script("document.querySelectorAll('#pace svg .phase').length") >= 4
    assert "more lateness on each source you would have kept at least" in browser.evaluate_script(
        "document.querySelector('#rows .advice').textContent"
    )
    # plots are not empty, and the page does not overflow
    assert browser.evaluate_script(
        "[...document.querySelectorAll('svg.plot:not(.slim)')].every(s => s.getBoundingClientRect().height > 8)"
    )
    assert browser.evaluate_script("document.documentElement.scrollWidth <= innerWidth")
    # the stylesheet is loaded, in both colour schemes
    colours = []
    for dark in (False, True):
        browser.set_dark_mode(dark)
        colours.append(browser.evaluate_script("getComputedStyle(document.body).backgroundColor"))
    assert colours[0] != colours[1]
    # the page follows commits, and open tables stay open
    wait_until(lambda: browser.evaluate_script("document.getElementById('link').textContent") == "live")
    browser.evaluate_script("document.querySelector('#rows details').open = true; window.same = 1; 1")
    before = browser.evaluate_script("document.querySelector('#top dd').textContent")
    run_two_source_pipeline(
        file, [MicroBatch({"web": [], "app": []}), MicroBatch({"web": [{"ts": 1, "user": "u1"}], "app": []})]
    )
    wait_until(lambda: browser.evaluate_script("document.querySelector('#top dd').textContent") not in ("", before))
    rows = "[...document.querySelectorAll('#rows details.table')].at(-1).querySelector('tbody tr:last-child th').textContent"
    wait_until(
        lambda: (
            browser.evaluate_script(rows) == browser.evaluate_script("document.querySelector('#top dd').textContent")
        )
    )
    wait_until(lambda: browser.evaluate_script("document.querySelector('#rows details').open"))
    assert browser.evaluate_script("window.same") == 1  # the page was not reloaded
    assert browser.evaluate_script("document.getElementById('link').textContent") == "live"
    # navigate from a bin to a key with the pointer
    browser.follow_link("#closing svg a .reach", "/closing?from=")
    browser.follow_link(".keys tbody a", "/key?user")
    assert browser.evaluate_script("document.querySelectorAll('svg .session').length") >= 1
    assert "open session" in browser.evaluate_script("document.querySelector('pre').textContent")
    # navigate to a bin with the keyboard
    browser.open_page(home + "/")
    browser.evaluate_script("document.querySelector('#closing svg a').focus(); 1")
    assert browser.evaluate_script("document.activeElement.getAttribute('aria-label')")
    browser.press_key("Enter", 13, "\r")
    browser.wait_for_page("/closing?from=")
    assert browser.read_console_problems() == []
    foreign = [url for url in browser.list_requested_urls() if not url.startswith((home, "about:", "data:"))]
    assert foreign == []
    assert any(url.endswith("/static/htmx.min.js") for url in browser.list_requested_urls())


@exhaustive(beside="test_ui_browser.py::test_page_renders_plots_follows_commits_and_links_to_keys")
def test_slider_opens_retained_commit_and_returns_to_latest(
    browser: Browser, served_session_pipeline: tuple[UiServer, Path]
) -> None:
    running, _ = served_session_pipeline
    home = f"http://127.0.0.1:{running.port}"
    browser.open_page(home + "/")
    latest = browser.evaluate_script("document.querySelector('#top dd').textContent")
    browser.evaluate_script("document.getElementById('epochs').focus(); 1")
    browser.press_key("ArrowLeft", 37)
    browser.wait_for_page("/epoch/")
    wait_until(lambda: browser.evaluate_script("document.querySelector('#top dd')?.textContent") not in (None, latest))
    assert "stays at this commit" in browser.evaluate_script("document.querySelector('.link dd').textContent")
    browser.click(".epochs a:last-child")
    wait_until(lambda: browser.evaluate_script("document.querySelector('#top dd')?.textContent") == latest)
    assert browser.read_console_problems() == []


@exhaustive(beside="test_ui_browser.py::test_page_renders_plots_follows_commits_and_links_to_keys")
def test_stage_pages_are_linked_and_follow_commits(browser: Browser, tmp_path: Path) -> None:
    """Click from the graph to a stage and from a histogram to a key, then open the join and add a commit."""
    file = three_stage_pipeline.run_three_stage_pipeline(tmp_path)
    running = serve_pages([open_page_source(file)], 0)
    home = f"http://127.0.0.1:{running.port}"
    try:
        browser.open_page(f"{home}/")
        wait_until(lambda: browser.evaluate_script("document.getElementById('link').textContent") == "live")
        assert "which waits for stage" in browser.evaluate_script("document.querySelector('.held').textContent")
        browser.save_light_and_dark_screenshots(tmp_path, "stages")
        browser.follow_link('#stages a[href="/stage/sessions/"] .box', "/stage/sessions/")
        assert browser.evaluate_script("document.querySelector('h1').textContent") == "law › sessions"
        assert (
            browser.evaluate_script("document.querySelector('#stages [aria-current] text').textContent") == "sessions"
        )
        browser.follow_link("#closing svg a .reach", "/stage/sessions/closing?from=")
        browser.follow_link(".keys tbody a", "/stage/sessions/key?user")
        assert "goes to stage" in browser.evaluate_script("document.querySelector('pre').textContent")
        browser.open_page(f"{home}/stage/seen/")
        wait_until(lambda: browser.evaluate_script("document.getElementById('link').textContent") == "live")
        browser.save_light_and_dark_screenshots(tmp_path, "stage")
        assert browser.evaluate_script("document.querySelectorAll('#joins svg:not(.slim) .bar').length") >= 1
        assert "stage minutes" in browser.evaluate_script(
            "document.querySelector('#watermark svg .lane.holds').textContent"
        )
        browser.evaluate_script("window.same = 1; 1")
        before = browser.evaluate_script("document.querySelector('#top dd').textContent")
        three_stage_pipeline.run_one_more_epoch(file)
        wait_until(lambda: browser.evaluate_script("document.querySelector('#top dd').textContent") not in ("", before))
        wait_until(lambda: browser.evaluate_script("document.querySelectorAll('#rows tbody tr').length") >= 3)
        assert browser.evaluate_script("window.same") == 1
        browser.check_console_and_requests(home)
    finally:
        running.stop()


@exhaustive(beside="test_ui_join.py::test_join_page_does_not_show_windows_and_accounts_for_all_rows")
def test_join_page_draws_waiting_rows(browser: Browser, tmp_path: Path) -> None:
    home = tmp_path / "join"
    run_order_payment_join(home)
    running = serve_pages(load_page_sources(str(home)), 0)
    try:
        browser.open_page(f"http://127.0.0.1:{running.port}/")
        assert browser.evaluate_script("document.querySelectorAll('#joins svg:not(.slim) .bar').length") >= 2
        assert browser.evaluate_script("document.querySelectorAll('#joins svg:not(.slim) .cap').length") == 2
        browser.save_light_and_dark_screenshots(tmp_path, "join")
        browser.check_console_and_requests(f"http://127.0.0.1:{running.port}")
    finally:
        running.stop()


@exhaustive(beside="test_ui_window_blocks.py::test_hostile_keys_are_escaped_in_every_page")
def test_hostile_key_does_not_execute_script(
    browser: Browser, served_session_pipeline: tuple[UiServer, Path], tmp_path: Path
) -> None:
    running, _ = served_session_pipeline
    home = f"http://127.0.0.1:{running.port}"
    for key in ("%3Cscript%3Ewindow.bad%3D1%3C%2Fscript%3E", "%22%3E%3Cimg%20src%3Dx%20onerror%3Dwindow.bad%3D1%3E"):
        browser.open_page(f"{home}/key?user={key}")
        assert browser.evaluate_script("window.bad === undefined")
        assert browser.evaluate_script("document.querySelectorAll('img').length") == 0
    assert browser.read_console_problems() == []


def test_a_saved_page_opens_without_a_server(
    browser: Browser, served_session_pipeline: tuple[UiServer, Path], tmp_path: Path
) -> None:
    from slackwater.cli.web_commands import save_page

    _, file = served_session_pipeline
    save_page([open_page_source(file)], tmp_path / "incident.html")
    browser.open_page(f"file://{tmp_path}/incident.html")
    assert browser.evaluate_script("document.querySelector('#top .sentence').classList.contains('still')")
    assert browser.evaluate_script("getComputedStyle(document.querySelector('.card')).borderRadius") == "12px"
    assert browser.read_console_problems() == []
    assert [url for url in browser.list_requested_urls() if not url.startswith(("file:", "about:"))] == []
