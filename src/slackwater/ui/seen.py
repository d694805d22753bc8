"""One look at a pipeline: everything that its page tells of one commit, made at once, so that all of it fits together."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from slackwater.config.pipeline import Pipeline
from slackwater.errors import SlackwaterError, StateError
from slackwater.maintenance.sizes import kept
from slackwater.query.described import pipeline_in
from slackwater.query.inspect import Texts
from slackwater.query.why import Why, why_of
from slackwater.state.commit import Commit
from slackwater.state.protocol import Snapshot, StateStore
from slackwater.ui.blocks.account import Rows, rows
from slackwater.ui.blocks.closing import Closing, closing
from slackwater.ui.blocks.growth import Growth, growth
from slackwater.ui.blocks.joined import Joined, joined
from slackwater.ui.blocks.key import OneKey, one_key
from slackwater.ui.blocks.pace import Pace, pace
from slackwater.ui.blocks.stages import StageSeen, stages
from slackwater.ui.blocks.top import Top, top
from slackwater.ui.blocks.watermark import Watermark, watermark
from slackwater.ui.waiting import Asker

Told = Callable[[Why, str], Iterable[str]]  # an answer of `why` as lines of text, with the file that it is about


@dataclass(frozen=True)
class Watched:
    """A pipeline that has a page: its config, the file of that, and where its commits are.

    Without a config, `pipeline` is as each commit describes it, and `file` is where the state lies.
    """

    pipeline: Pipeline
    file: str
    store: StateStore
    told: Told
    asker: Asker = field(default_factory=Asker)
    is_described: bool = False

    def of(self, commit: Commit) -> Pipeline:
        """The pipeline that a commit is looked at by. Raises StateError."""
        return pipeline_in(commit) if self.is_described else self.pipeline


@dataclass(frozen=True)
class Seen:
    """The blocks of one commit. `tag`: another one wherever something else is seen. `closing`: None for a join, `joined`: for
    all else. `kept`: the commits up to this one that can be looked at."""

    tag: str
    looked_us: int
    top: Top
    watermark: Watermark
    rows: Rows
    closing: Closing | None
    growth: Growth
    pace: Pace
    joined: Joined | None
    stages: tuple[StageSeen, ...]
    kept: tuple[int, ...]


def look_at(watched: Watched, now_us: int, epoch: int | None = None) -> Seen:
    """Look at the latest commit, or at a kept one. Raises StateError if there is none, it is damaged, or the config cannot go
    on with it."""
    with watched.store.peek(epoch) as snapshot:
        if snapshot is None:
            raise StateError(
                f"{watched.pipeline.name}: there is no state yet; it begins with the first epoch of: slackwater run {watched.file}"
            )
        return seen(watched, snapshot, kept(watched.store), watched.store.runner(), now_us)


def seen(watched: Watched, snapshot: Snapshot, commits: Iterable[Commit], runner: str | None, now_us: int) -> Seen:
    commit = snapshot.commit
    # a runner may have gone on, or have removed this commit's record, since the snapshot was taken
    history = [*(m for m in commits if m.epoch < commit.epoch), commit]
    pipeline = watched.of(commit)
    answer = why_of(pipeline, snapshot, runner, now_us)
    found = rows(history, answer.lateness)
    return Seen(
        tag_of(commit, runner, answer.is_published),
        now_us,
        top(answer, found, list(watched.told(answer, watched.file))),
        watermark(answer, history),
        found,
        closing(snapshot),
        growth(history),
        pace(history, watched.asker.waits(pipeline, snapshot), now_us),
        joined(snapshot, [s.source for s in answer.sides]),
        stages(commit),
        tuple(m.epoch for m in history),
    )


def tag_of(commit: Commit, runner: str | None, published: bool) -> str:
    """The epoch, with what else may differ: whose state it is, who runs it, what is published."""
    rest = f"{commit.state_id}\0{commit.committed_us}\0{runner}\0{published}"
    return f"{commit.epoch}-{hashlib.sha256(rest.encode()).hexdigest()[:12]}"


def key_at(watched: Watched, key: Texts, now_us: int) -> OneKey:
    """One key of the latest commit. Raises StartError for a wrong key, StateError."""
    with watched.store.peek() as snapshot:
        if snapshot is None:
            raise StateError(f"{watched.pipeline.name}: there is no state yet")
        return one_key(snapshot, key, _told(watched, snapshot, key, now_us))


def _told(watched: Watched, snapshot: Snapshot, key: Texts, now_us: int) -> list[str]:
    """What `why --key` says of the key itself; it knows the windows of the first stage."""
    if len(snapshot.commit.stages) > 1:
        return []
    try:
        answer = why_of(watched.of(snapshot.commit), snapshot, None, now_us, key)
    except SlackwaterError:
        return []
    lines = list(watched.told(answer, watched.file))
    begins = max((n for n, line in enumerate(lines) if not line), default=-1) + 1
    return lines[begins:]
