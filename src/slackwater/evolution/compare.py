"""What a config changes about a state: each difference with its verdict. Pure: what the state says of itself, and the config.

`slackwater plan` prints this, and a start carries it out or refuses it in the same words. Only a start knows the types of the
columns that come out of the SQL; without them (`steps` is None) those that the state knows count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slackwater.config.paths import as_written
from slackwater.config.pipeline import Pipeline
from slackwater.config.target import Target
from slackwater.config.window import Window
from slackwater.core.words import plural
from slackwater.evolution import restore
from slackwater.evolution.change import COMPATIBLE, MIGRATED, REBUILD, Change, Comparison
from slackwater.evolution.compare_stage import KINDS, StageComparison
from slackwater.evolution.texts import columns_text
from slackwater.operators.base import Operator
from slackwater.state.commit import Commit, StageState


def compare(
    pipeline: Pipeline,
    commit: Commit,
    *,
    steps: Sequence[Operator] | None = None,
    shards: int | None = None,
    published: int | None = None,
) -> Comparison:
    """Compare a commit with a config. `shards`: how many a start has, None where only it knows. `published`: the last epoch.

    Raises ConfigError for a description in the state that cannot be read.
    """
    own = list(pipeline.alone.values())
    kind = KINDS.get(str(commit.stages[0].fingerprint.get("kind")), "window")
    found: list[Change] = []
    if len(own) != len(commit.stages):
        how = "a stage begins with the rows of the one before it, which are gone"
        found.append(Change("stages", len(commit.stages), len(own), REBUILD, how))
    else:
        for n, (one, state) in enumerate(zip(own, commit.stages, strict=True)):
            made = None if steps is None else steps[n]
            prefix = f"stages[{n}]." if own[1:] else ""
            found += StageComparison(one.transform.step, commit, state, made, prefix).changes()
            found += _texts(one, state, prefix)
    found += _around(pipeline, commit, shards)
    return Comparison(pipeline.name, commit.epoch, kind, tuple(found), _waiting(pipeline, commit, published))


# -- what is around the steps ------------------------------------------------------------------------------------------


def _around(pipeline: Pipeline, commit: Commit, shards: int | None) -> Iterator[Change]:
    """Sources, shards, targets."""
    known = commit.sources
    for source in pipeline.sources:
        if known and source.name not in known:
            how = "it is read from its own beginning (starting_offsets), and holds the watermark until it is heard or counts as idle"
            yield Change(f'source "{source.name}"', None, as_written(source.query or "given"), COMPATIBLE, how)
    for name in known.keys() - {s.name for s in pipeline.sources}:
        how = "its clock and where it goes on are forgotten; what was read of it stays in the windows"
        yield Change(f'source "{name}"', plural(commit.clocks[name].rows, "row"), None, COMPATIBLE, how)
    store = pipeline.state_store
    wanted = shards or (store.shards if store else None)
    if wanted is not None and wanted != commit.shards:
        rows = sum(m.rows for m in commit.metas)
        yield Change("shards", commit.shards, wanted, MIGRATED, f"{rows:,} state rows are spread over {wanted}")
    for what, target, key in (("target", pipeline.target, "target"), ("dead_letter", pipeline.dead_letter, "letters")):
        before, after = commit.destination.get(key), place(target)
        if commit.destination and before != after:
            how = f"what comes out after epoch {commit.epoch} goes there; what is out stays where it is"
            yield Change(what, _name(before), _name(after), COMPATIBLE, how)


def _texts(pipeline: Pipeline, state: StageState, prefix: str) -> Iterator[Change]:
    """SQL and what sources read; the state has hashes of them. Whether other SQL means the same, only its author knows."""
    known = state.texts

    def short(text: str) -> str | None:
        return f"text {text[:8]}" if text else None

    for what, now in restore.sql_hashes(pipeline).items():
        if (was := known.get(what, now)) != now:
            how = "rows from the next start on go through it; those in the state stay"
            yield Change(prefix + what, short(was), short(now), COMPATIBLE, how, "warning")
    for what, now in restore.query_hashes(pipeline).items():
        if (was := known.get(what, "")) not in ("", now):  # a DataFrame has none
            how = "it is read from the next start on; files, and offsets of topics, that the state knows are not read again"
            yield Change(prefix + what, short(was), short(now), COMPATIBLE, how)


def place(target: Target | None) -> list[str | None] | None:
    """Where a target writes, as a commit names it."""
    return None if target is None else [target.path and as_written(target.path), target.table, target.topic]


def _name(parts: Sequence[str | None] | None) -> str | None:
    return None if parts is None else next((p for p in parts if p), "console")


def _waiting(pipeline: Pipeline, commit: Commit, published: int | None) -> str | None:
    """Why the former config has to start once more: what it committed is not out, and the new one would write it elsewhere."""
    if published is None or published >= commit.epoch or not commit.staged or not commit.destination:
        return None
    former = commit.destination
    changed = [
        k for k, t in (("target", pipeline.target), ("letters", pipeline.dead_letter)) if former.get(k) != place(t)
    ]
    names, step = columns_text(pipeline), pipeline.last.transform.step
    if isinstance(step, Window) and former.get("columns") != names:
        changed.append("columns")
    if not changed:
        return None
    return (
        f"epoch {commit.epoch} was committed and not yet published, and the config has changed since ({', '.join(changed)}); "
        "start once with the former config, then change it"
    )
