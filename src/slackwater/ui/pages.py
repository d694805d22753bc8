"""Renders page models as HTML with templates, which escape all values.

On a narrow screen, tables become lists. Therefore each cell has the name of its column, which the stylesheet then shows:

<td>7</td>  ──▶  <td data-label="rows">7</td>
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape, unescape
from importlib import resources
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from slackwater.core import humanize
from slackwater.core.paths import file_uri_to_path
from slackwater.core.row_format import format_value
from slackwater.ui.blocks import (
    join_buffers,
    key,
    row_accounting,
    stages,
    throughput_and_size,
    upcoming_closes,
    watermark,
)
from slackwater.ui.blocks.stages import StageSummary
from slackwater.ui.page_model import PageModel
from slackwater.ui.svg import HALF, draw_both_widths

STAGE_BLOCKS = ("top", "stages", "watermark", "rows", "closing", "size", "joins")
BLOCKS = ("top", "stages", "watermark", "rows", "closing", "size", "pace", "joins", "runs")
PHASE_LABELS = {
    "plan": "plan",
    "read": "read",
    "ingest": "step",
    "emit": "emit",
    "commit": "commit",
    "write": "publish",
    "note": "mark published",
}


@dataclass(frozen=True)
class PageLocation:
    """The location of a page, which determines its links.

    Args:
        base: The prefix of the page's URLs; None in a saved file.
        epoch: The commit that the page shows; None for the latest.
        others: The names and URLs of all pipelines, if the server has several.
        home: For the page of a stage, the prefix of its pipeline's URLs; otherwise None.
    """

    base: str | None
    epoch: int | None = None
    others: tuple[tuple[str, str], ...] = ()
    home: str | None = None

    @property
    def top(self) -> str | None:
        """The prefix of the pipeline's URLs."""
        return self.base if self.home is None else self.home

    def stage_base(self, stage: StageSummary | None, model: PageModel) -> str | None:
        """Return the URL prefix of a stage's page or, if the pipeline has only one stage, of the pipeline's page.

        Return None for a saved file or an earlier commit, whose pages do not link to keys and windows.
        """
        if self.base is None or self.epoch is not None:
            return None
        if stage is None or not model.stages[1:] or model.stage is not None:
            return self.base
        return f"{self.base}/stage/{stage.at}"


def read_static_file(name: str) -> bytes:
    return (resources.files("slackwater.ui") / "static" / name).read_bytes()


@cache
def _templates() -> Environment:
    env = Environment(
        loader=PackageLoader("slackwater.ui", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(
        moment=humanize.format_exact_time,
        about=humanize.format_time,
        span=humanize.format_span,
        size=humanize.format_size,
        number=humanize.format_number,
        listed=humanize.format_key_values,
        percent=humanize.format_percent,
        rate=humanize.format_rate,
        plural=humanize.plural,
        counted=upcoming_closes.count_windows,
        plain=format_value,
        path=file_uri_to_path,
    )
    env.globals.update(
        draw_lanes=draw_both_widths(watermark.draw_lanes),
        draw_behind=draw_both_widths(watermark.draw_lag),
        shown_lanes=watermark.select_lanes,
        draw_total=draw_both_widths(row_accounting.draw_total),
        draw_epochs=draw_both_widths(row_accounting.draw_epochs),
        draw_bins=draw_both_widths(upcoming_closes.draw_closes),
        draw_key=draw_both_widths(key.draw_key_timeline),
        draw_bytes=draw_both_widths(throughput_and_size.draw_size, HALF),
        draw_rows=draw_both_widths(throughput_and_size.draw_rows, HALF),
        draw_lateness=draw_both_widths(row_accounting.draw_lateness),
        draw_laps=draw_both_widths(throughput_and_size.draw_epoch_times),
        draw_stages=stages.draw_stages,
        draw_join_buffers=draw_both_widths(join_buffers.draw_join_buffers),
        phase_labels=PHASE_LABELS,
        style=None,
        key_query=_key_query,
    )
    return env


def render(template: str, location: PageLocation = PageLocation(""), **values: Any) -> bytes:
    """Render a template. `values`: the values of the template's variables."""
    page = _templates().get_template(template).render(location=location, **values)
    return label_table_cells(page).encode(errors="replace")


def render_fragment(name: str, model: PageModel, location: PageLocation) -> bytes:
    """Render one block as HTML."""
    return render(f"_{name}.html", location, model=model)


def render_page(
    model: PageModel, location: PageLocation, epochs: Sequence[int] = (), of_stages: Sequence[PageModel] = ()
) -> bytes:
    """Render a page with all blocks. A saved file includes its styles, and has neither scripts nor links.

    Args:
        model: The model of the page.
        location: The location of the page; its `base` is None for a saved file.
        epochs: The epochs to which the page links; by default, the kept epochs of the model.
        of_stages: The models of single stages, whose blocks are appended in a saved file.
    """
    blocks, stages = _blocks(model, location), [(s, _blocks(s, location)) for s in of_stages]
    values: dict[str, Any] = {"epochs": epochs or model.kept_epochs}
    if location.base is None:
        record = {b: block_as_data(b, model) for b in _block_names(model)}
        if stages:
            record["stages"] = {s.stage: {b: block_as_data(b, s) for b in STAGE_BLOCKS} for s in of_stages}
        values["record"] = json.dumps(record, ensure_ascii=False, indent=1)
        values["style"] = Markup(read_static_file("ui.css").decode())
    return render("page.html", location, model=model, blocks=blocks, stages=stages, **values)


def _block_names(model: PageModel) -> tuple[str, ...]:
    """Return the names of the blocks of a model: fewer for a stage than for the whole pipeline."""
    return STAGE_BLOCKS if model.stage is not None else BLOCKS


def _blocks(model: PageModel, location: PageLocation) -> dict[str, Markup]:
    return {
        name: Markup(render_fragment(name, model, location).decode()) for name in _block_names(model)
    }  # already escaped


# -- JSON ------------------------------------------------------------------------------------------------------------


def block_as_data(name: str, model: PageModel) -> Any:
    """Return a block as plain data for JSON; None if the model does not have the block."""
    block = getattr(model, name)
    if isinstance(block, tuple):
        return [dataclasses.asdict(row) for row in block]
    return None if block is None else dataclasses.asdict(block)


def to_json(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, default=format_value).encode(errors="replace")


def _key_query(key: Mapping[str, Any]) -> str:
    """Format a key as the query string of its page; a name without a value means NULL."""
    return "&".join(quote(n, safe="") + ("" if v is None else f"={quote(str(v), safe='')}") for n, v in key.items())


# -- names of columns in cells -----------------------------------------------------------------------------------------

_TABLE = re.compile(r"<thead>(.*?)</thead>(.*?)</table>", re.DOTALL)
_NAME = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_CELL = re.compile(r"<(tr|td|th)\b(?! data-label)([^>]*)>")
_SPAN = re.compile(r'colspan="(\d+)"')
_TAG = re.compile(r"<[^>]*>")


def label_table_cells(page: str) -> str:
    """Add the column names to the table cells in rendered HTML.

    The values in the HTML must be escaped, so that a user's text cannot look like a tag.
    """
    return _TABLE.sub(_label_table, page)


def _label_table(table: re.Match[str]) -> str:
    names = [unescape(_TAG.sub("", name)).strip() for name in _NAME.findall(table[1])]
    column = 0

    def label(cell: re.Match[str]) -> str:
        nonlocal column
        if cell[1] == "tr":
            column = 0
            return cell[0]
        span = _SPAN.search(cell[2])
        name = names[column] if column < len(names) and span is None else ""
        column += int(span[1]) if span else 1
        return f'<{cell[1]} data-label="{escape(name)}"{cell[2]}>'

    return f"<thead>{table[1]}</thead>{_CELL.sub(label, table[2])}</table>"
