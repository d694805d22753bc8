"""Pages and fragments: blocks through templates. Everything that is put in is escaped."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from slackwater.core.lateness import percent
from slackwater.core.local_files import local_name
from slackwater.core.words import plural
from slackwater.maintenance.hot_keys import HotKey
from slackwater.query.text import plain
from slackwater.ui.blocks.closing import Window, counted
from slackwater.ui.blocks.key import OneKey
from slackwater.ui.blocks.stages import StageSeen
from slackwater.ui.draw import account, closing, growth, joined, key, lateness, pace, stages, watermark
from slackwater.ui.seen import Seen
from slackwater.ui.svg import HALF, in_both
from slackwater.ui.tables import with_labels
from slackwater.ui.words import about, brief, listed, moment, number, rate, size, span

OF_STAGE = ("top", "stages", "watermark", "rows", "closing", "size", "joins")
BLOCKS = ("top", "stages", "watermark", "rows", "closing", "size", "pace", "joins", "runs")
PHASES = {
    "plan": "plan",
    "read": "read",
    "ingest": "step",
    "emit": "emit",
    "commit": "commit",
    "write": "publish",
    "note": "note it",
}


@dataclass(frozen=True)
class Place:
    """Where a page is: `base` before its addresses, None in a file; the kept commit that it stays at, None for the latest; the
    names of all pipelines, if there are several; `home`: of a stage what is before the addresses of its pipeline."""

    base: str | None
    epoch: int | None = None
    others: tuple[tuple[str, str], ...] = ()
    home: str | None = None

    @property
    def top(self) -> str | None:
        """What is before the addresses of the pipeline."""
        return self.base if self.home is None else self.home

    def of(self, stage: StageSeen | None, seen: Seen) -> str | None:
        """What is before the addresses of a stage, as its page or that of the pipeline has it."""
        if self.base is None or self.epoch is not None:
            return None
        if stage is None or not seen.stages[1:] or seen.stage is not None:
            return self.base
        return f"{self.base}/stage/{stage.at}"


def static(name: str) -> bytes:
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
    env.filters.update(moment=moment, about=about, span=span, size=size, number=number, brief=brief, listed=listed)
    env.filters.update(percent=percent, rate=rate, plural=plural, counted=counted, plain=plain, path=local_name)
    env.globals.update(
        draw_lanes=in_both(watermark.lanes),
        draw_behind=in_both(watermark.behind),
        shown_lanes=watermark.shown,
        draw_total=in_both(account.total),
        draw_epochs=in_both(account.epochs),
        draw_bins=in_both(closing.bins),
        draw_key=in_both(key.timeline),
        draw_bytes=in_both(growth.weight, HALF),
        draw_rows=in_both(growth.rows, HALF),
        draw_lateness=in_both(lateness.steps),
        draw_laps=in_both(pace.laps),
        draw_stages=stages.boxes,
        draw_ages=in_both(joined.ages),
        said_phases=PHASES,
        key_query=key_query,
    )
    return env


def _rendered(template: str, **values: Any) -> bytes:
    return with_labels(_templates().get_template(template).render(**values)).encode(errors="replace")


def fragment(name: str, seen: Seen, place: Place) -> bytes:
    """One block as HTML."""
    return _rendered(f"_{name}.html", seen=seen, place=place)


def page(seen: Seen, place: Place, epochs: Sequence[int] = (), of_stages: Sequence[Seen] = ()) -> bytes:
    """All blocks. In a file styles are part of it, and there are no scripts and no links. `epochs`: that can be gone to.

    `of_stages`: looks at stages, whose blocks follow.
    """
    blocks, stages = _blocks(seen, place), [(s, _blocks(s, place)) for s in of_stages]
    style = None if place.base is not None else Markup(static("ui.css").decode())
    given: dict[str, Any] = {"style": style, "record": None, "epochs": epochs or seen.kept}
    if place.base is None:
        record = {b: data(b, seen) for b in names(seen)}
        if stages:
            record["stages"] = {s.stage: {b: data(b, s) for b in OF_STAGE} for s in of_stages}
        given["record"] = json.dumps(record, ensure_ascii=False, indent=1)
    return _rendered("page.html", seen=seen, place=place, blocks=blocks, stages=stages, **given)


def names(seen: Seen) -> tuple[str, ...]:
    """The blocks that there are of what is seen."""
    return OF_STAGE if seen.stage is not None else BLOCKS


def _blocks(seen: Seen, place: Place) -> dict[str, Markup]:
    return {name: Markup(fragment(name, seen, place).decode()) for name in names(seen)}  # escaped as it was made


def bin_page(seen: Seen, place: Place, low: int, high: int, windows: Sequence[Window]) -> bytes:
    return _rendered("bin.html", seen=seen, place=place, style=None, low=low, high=high, windows=windows)


def key_page(pipeline: str, place: Place, found: OneKey, stage: str | None = None) -> bytes:
    return _rendered("key.html", pipeline=pipeline, stage=stage, place=place, style=None, key=found)


def letters_page(
    pipeline: str, place: Place, reason: str | None, letters: Sequence[Mapping[str, Any]], most: int
) -> bytes:
    """The newest dead letters, at most `most`."""
    return _rendered(
        "letters.html", pipeline=pipeline, place=place, style=None, reason=reason, letters=letters, most=most
    )


def hot_page(seen: Seen, place: Place, keys: Sequence[HotKey]) -> bytes:
    return _rendered("hot.html", seen=seen, place=place, style=None, keys=keys)


def overview(known: Sequence[tuple[str, str, Seen | None, str | None, bool]]) -> bytes:
    """Of each pipeline its name, its address, and what is seen of it or why nothing is, and whether that only waits for its first commit."""
    return _rendered("overview.html", known=known, place=Place(""), style=None)


def problem(pipeline: str, place: Place, line: str, waits: bool = False) -> bytes:
    """`waits`: nothing is wrong, the first commit is still to come; the page asks for it again."""
    return _rendered("problem.html", pipeline=pipeline, place=place, style=None, line=line, waits=waits)


def problem_fragment(line: str, waits: bool = False) -> bytes:
    return _rendered("_problem.html", line=line, waits=waits)


# -- JSON ------------------------------------------------------------------------------------------------------------

_DATA: Mapping[str, Callable[[Seen], Any]] = {
    "top": lambda seen: seen.top,
    "watermark": lambda seen: seen.watermark,
    "rows": lambda seen: seen.rows,
    "closing": lambda seen: seen.closing,
    "size": lambda seen: seen.growth,
    "pace": lambda seen: seen.pace,
    "joins": lambda seen: seen.joined,
    "runs": lambda seen: seen.runs,
    "stages": lambda seen: seen.stages,
}


def data(name: str, seen: Seen) -> Any:
    """A block as plain data; None where there is none, as of windows in a join, or of a join in windows."""
    found = _DATA[name](seen)
    if isinstance(found, tuple):
        return [dataclasses.asdict(one) for one in found]
    return None if found is None else dataclasses.asdict(found)


def as_json(found: Any) -> bytes:
    return json.dumps(found, ensure_ascii=False, default=plain).encode(errors="replace")


def key_query(key: Mapping[str, Any]) -> str:
    """A key as the query string of its page: a name alone stands for NULL."""
    return "&".join(quote(n, safe="") + ("" if v is None else f"={quote(str(v), safe='')}") for n, v in key.items())
