"""Layout of every page state in a browser: phones cut off no content, and all text has the contrast of WCAG 2.2 AA."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.browser import Browser
from tests.support.case_selection import exhaustive
from tests.support.ui_scenarios import UiScenario, serve_ui_scenarios

# returns visible elements that extend beyond the window, or whose content is wider than the element
CUT = """
(() => {
  for (const d of document.querySelectorAll('details')) d.open = true;
  const found = [], most = document.documentElement.clientWidth + 0.5;
  if (document.documentElement.scrollWidth > most) found.push(['page', document.documentElement.scrollWidth]);
  for (const e of document.querySelectorAll('body *')) {
    if (!e.checkVisibility({contentVisibilityAuto: true, visibilityProperty: true})) continue;
    if (e.closest('thead, .skip, defs, title') ) continue;
    const r = e.getBoundingClientRect(), named = e.tagName + '.' + (e.getAttribute('class') || '') + ' ' + e.textContent.slice(0, 60);
    if (r.width && (r.right > most || r.left < -0.5)) found.push([named, r.left, r.right]);
    const inline = getComputedStyle(e).display === 'inline';
    if (!(e instanceof SVGElement) && !inline && e.scrollWidth > e.clientWidth + 1) found.push([named, e.scrollWidth, e.clientWidth]);
  }
  return found.slice(0, 12);
})()
"""
# returns visible texts whose contrast with their background is below 4.5
FAINT = """
(() => {
  for (const d of document.querySelectorAll('details')) d.open = true;
  const parse = c => { const n = c.match(/[\\d.]+/g).map(Number); return n.length > 3 ? n : [...n, 1]; };
  const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
  const light = c => { const [r, g, b] = c.slice(0, 3).map(v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = e => { const layers = []; for (let at = e; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255, 1]); };
  const found = {}; let pairs = 0;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || !e.checkVisibility() || e.closest('title, script, style, defs')) continue;
    const style = getComputedStyle(e), box = e.closest('a')?.querySelector('.box');
    const ground = box && e instanceof SVGElement ? parse(getComputedStyle(box).fill) : behind(e);
    const ink = parse(e instanceof SVGElement ? style.fill : style.color); ink[3] *= Number(style.opacity);
    const [low, high] = [light(over(ink, ground)), light(ground)].sort((a, b) => a - b), ratio = (high + 0.05) / (low + 0.05);
    pairs += 1;
    if (ratio < 4.5) found[e.tagName + '.' + (e.getAttribute('class') || '') + ' ' + e.textContent.slice(0, 30)] = ratio;
  }
  return {pairs, found};
})()
"""


@pytest.fixture(scope="module")
def served_page_scenes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[UiScenario]]:
    with serve_ui_scenarios(tmp_path_factory.mktemp("scenes")) as drawn_scenes:
        yield drawn_scenes


def set_window_width(browser: Browser, width: int) -> None:
    browser.send_command(
        "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
    )


@exhaustive(beside="test_ui_browser.py::test_page_renders_plots_follows_commits_and_links_to_keys")
@pytest.mark.parametrize("width", [320, 400, 1280])
def test_page_content_is_not_cut_off_at_any_width(
    browser: Browser, served_page_scenes: list[UiScenario], width: int
) -> None:
    set_window_width(browser, width)
    wrong: dict[str, Any] = {}
    for scene in served_page_scenes:
        browser.open_page(scene.url)
        if cut_off := browser.evaluate_script(CUT):
            wrong[scene.name] = cut_off
        # every visible plot has a height at this width
        assert browser.evaluate_script(
            "[...document.querySelectorAll('svg.plot')].filter(s => s.checkVisibility()).every(s => s.getBoundingClientRect().height > 8)"
        ), scene.name
    browser.open_page("about:blank")
    assert not wrong, json.dumps(wrong, indent=1, ensure_ascii=False)


@exhaustive(beside="test_ui_contrast.py::test_colours_meet_the_wcag_contrast_ratios")
@pytest.mark.parametrize("width", [400, 1280])
def test_all_text_has_sufficient_contrast(
    browser: Browser, served_page_scenes: list[UiScenario], width: int, tmp_path: Path
) -> None:
    set_window_width(browser, width)
    wrong: dict[str, Any] = {}
    for scene in served_page_scenes:
        browser.open_page(scene.url)
        for dark in (False, True):
            browser.set_dark_mode(dark)
            if browser.evaluate_script("document.contentType") != "text/html":
                continue  # one line of plain text, in the colours of the browser
            report = browser.evaluate_script(FAINT)
            assert report["pairs"], scene.name
            if report["found"]:
                wrong[f"{scene.name} {'dark' if dark else 'light'}"] = report["found"]
    browser.open_page("about:blank")
    assert not wrong, json.dumps(wrong, indent=1, ensure_ascii=False)
