"""What a config changes about a state: each difference with its verdict. Pure: what the state says of itself, and the config.

`slackwater plan` prints this, and a start carries it out or refuses it in the same words. Only a start knows the types of the
columns that come out of the SQL; without them (`steps` is None) those that the state knows count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slackwater.config.paths import as_written
from slackwater.config.pipeline import Pipeline
from slackwater.core.words import plural
from slackwater.evolution import destinations, growth, restore
from slackwater.evolution.change import COMPATIBLE, MIGRATED, REBUILD, Change, Comparison
from slackwater.evolution.compare_stage import StageComparison, called
from slackwater.evolution.pairing import Pairing, paired
from slackwater.operators.base import Operator
from slackwater.state.commit import Commit, StageState


def compare(
    pipeline: Pipeline,
    commit: Commit,
    *,
    steps: Sequence[Operator] | None = None,
    shards: int | None = None,
    missing: Sequence[str] = (),
) -> Comparison:
    """Compare a commit with a config. `shards`: how many a start has, None where only it knows. `missing`: targets without their part.

    Raises ConfigError for a description in the state that cannot be read.
    """
    own = list(pipeline.alone.values())
    kind = called(commit.stages[0].fingerprint.get("kind")).removesuffix(" without state")
    pairs = paired(list(pipeline.alone), commit)
    found = list(_stages(pipeline, commit, pairs))
    for n, (one, state) in enumerate(zip(own, pairs.kept, strict=True)):
        if state is not None:
            made = None if steps is None else steps[n]
            prefix = f"stages[{n}]." if own[1:] else ""
            found += StageComparison(one.transform.step, commit, state, made, prefix).changes()
            found += _texts(one, state, prefix)
            found += _inputs(one, commit, state, prefix)
    found += _around(pipeline, commit, shards)
    if steps is not None:
        results = {
            name: {f.name: f.type for f in step.output} for name, step in zip(pipeline.alone, steps, strict=True)
        }
        found += growth.target_changes(pipeline, commit, results)
    return Comparison(pipeline.name, commit.epoch, kind, tuple(found), destinations.waiting(pipeline, commit, missing))


# -- what is around the steps ------------------------------------------------------------------------------------------


def _stages(pipeline: Pipeline, commit: Commit, pairs: Pairing) -> Iterator[Change]:
    """Stages that begin, and those that are gone."""
    names, own = list(pipeline.alone), list(pipeline.alone.values())
    moved = _moved(pipeline, commit, pairs)
    for name, one, state in zip(names, own, pairs.kept, strict=True):
        if state is None:
            what = "stage without state" if one.transform.is_rows else one.transform.step.kind
            how = "it begins empty, with what comes from the next start on"
            yield Change(f'stage "{name}"', None, what, REBUILD if moved else MIGRATED, moved or how)
    for state in pairs.removed:
        rows = sum(m.rows for m in state.metas)
        how = f"its {plural(rows, 'state row')} are forgotten, open windows with them; what it emitted stays"
        verdict = REBUILD if moved else MIGRATED
        yield Change(f'stage "{state.name}"', plural(rows, "row"), None, verdict, moved or how, "warning")


def _inputs(one: Pipeline, commit: Commit, state: StageState, prefix: str) -> Iterator[Change]:
    """What a stage reads of other stages."""
    was = [n for n in state.clocks if n not in commit.sources]
    now = [s.name for s in one.sources if s.of_stage]
    if state.clocks and was != now:
        how = "it reads these from the next start on; what it read so far stays"
        yield Change(f"{prefix}from", ", ".join(was) or None, ", ".join(now) or None, COMPATIBLE, how)


def _moved(pipeline: Pipeline, commit: Commit, pairs: Pairing) -> str | None:
    """Why the stages of a state cannot stay where a store keeps them: tables bear the place of their stage."""
    store = pipeline.state_store
    if pairs.is_same or store is None or store.kind != "postgres":
        return None
    stay = all(s is None or commit.stages.index(s) == n for n, s in enumerate(pairs.kept))
    behind = all(n >= len(commit.stages) for n, s in enumerate(pairs.kept) if s is None)
    if stay and behind:
        return None
    return "in Postgres a stage's table bears its place: put new stages behind those there are, and remove the last ones only"


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
    for what, before, after, how in destinations.changes(pipeline, commit):
        yield Change(what, before, after, COMPATIBLE, how)


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
