"""Compare a config with a state, and give a verdict on each difference.

The comparison is a pure function of the config and of the descriptions in the state. `slackwater plan` prints the
result. At startup, Slackwater applies or rejects the differences with the same messages.

The column types that the SQL returns are known only when the pipeline starts. Without them (`steps` is None), the
comparison uses the types in the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import xxhash

from slackwater.config.pipeline import Pipeline
from slackwater.config.relative_paths import restore_written_path
from slackwater.config.state_comparison import COMPATIBLE, MIGRATED, REBUILD, KeyChange, StateComparison
from slackwater.core.humanize import plural
from slackwater.evolution import added_columns, target_changes
from slackwater.evolution.compare_stage import StageComparison, step_type_name
from slackwater.evolution.stage_matching import StageMatch, match_stages
from slackwater.operators.base import Operator
from slackwater.state.commit import Commit, StageState


def compare_config(
    pipeline: Pipeline,
    commit: Commit,
    *,
    steps: Sequence[Operator] | None = None,
    shards: int | None = None,
    missing: Sequence[str] = (),
) -> StateComparison:
    """Compare a config with a commit.

    Args:
        pipeline: The config.
        commit: The commit of the state.
        steps: The operators of the stages; None if their column types are unknown.
        shards: The number of shards with which the pipeline starts; None for the number in the config.
        missing: The targets that have not received their output from the commit.

    Raises ConfigError if a description in the state cannot be read.
    """
    sub_pipelines = list(pipeline.stage_pipelines.values())
    kind = step_type_name(commit.stages[0].fingerprint.get("kind")).removesuffix(" without state")
    pairs = match_stages(pipeline.former_names, commit)
    changes = list(_compare_stages(pipeline, commit, pairs))
    for n, (sub_pipeline, state) in enumerate(zip(sub_pipelines, pairs.matched, strict=True)):
        if state is not None:
            operator = None if steps is None else steps[n]
            prefix = f"stages[{n}]." if sub_pipelines[1:] else ""
            changes += StageComparison(sub_pipeline.transform.step, commit, state, operator, prefix).find_changes()
            changes += _compare_texts(sub_pipeline, state, prefix)
            changes += _compare_inputs(sub_pipeline, commit, state, prefix)
    changes += _compare_surroundings(pipeline, commit, shards)
    if steps is not None:
        outputs = [{f.name: f.type for f in step.output} for step in steps]
        results = dict(zip(pipeline.stage_pipelines, outputs, strict=True))
        changes += added_columns.added_column_changes(pipeline, commit, results)
    blocked = target_changes.describe_blocked_change(pipeline, commit, missing)
    return StateComparison(pipeline.name, commit.epoch, kind, tuple(changes), blocked)


# -- stages, sources, shards and targets -------------------------------------------------------------------------------


def _compare_stages(pipeline: Pipeline, commit: Commit, pairs: StageMatch) -> Iterator[KeyChange]:
    """Yield the changes for new, renamed and removed stages."""
    moved = _reorder_problem(pipeline, commit, pairs)
    before = [s.name for s in commit.stages]
    stages = zip(pipeline.stage_pipelines.items(), pairs.matched, strict=True)
    for number, ((name, sub_pipeline), state) in enumerate(stages):
        label, transform = f'stage "{name}"', sub_pipeline.transform
        kind = "stage without state" if transform.is_stateless else transform.step.kind
        if name in pairs.problems:
            yield KeyChange(label, ", ".join(before), kind, REBUILD, pairs.problems[name])
        elif state is None:
            how = "it is a new stage, which begins empty with rows read after the next start"
            if pairs.removed:
                how += f"; if it is a renamed stage of the state ({', '.join(s.name for s in pairs.removed)}), set formerly"
            yield KeyChange(label, None, kind, REBUILD if moved else MIGRATED, moved or how)
        elif name in pairs.renamed:
            verdict = REBUILD if moved else COMPATIBLE
            yield KeyChange(label, pairs.renamed[name], name, verdict, moved or "it is renamed, and keeps its state")
        elif moved and (place := before.index(name)) != number:
            yield KeyChange(label, f"position {place + 1}", f"position {number + 1}", REBUILD, moved)
    for name in pairs.problems.keys() - pipeline.stage_pipelines.keys():  # the [transform] of the state
        yield KeyChange(f'stage "{name}"', name, None, REBUILD, pairs.problems[name])
    for state in pairs.removed:
        if state.name in pairs.problems:
            continue
        rows = sum(m.rows for m in state.metas)
        how = f"it is removed with its {plural(rows, 'state row')} and open windows; its published results stay"
        verdict = REBUILD if moved else MIGRATED
        yield KeyChange(f'stage "{state.name}"', plural(rows, "row"), None, verdict, moved or how, "warning")


def _compare_inputs(sub_pipeline: Pipeline, commit: Commit, state: StageState, prefix: str) -> Iterator[KeyChange]:
    """Yield a change if the inputs of a stage differ. A renamed input stage is not a difference."""
    before, now = list(state.clocks), [s.name for s in sub_pipeline.sources]
    if not prefix or not before or {*before} == {*now}:
        return
    how, level = "it reads the new inputs from the next start on; rows that it has read stay in its state", "info"
    if gone := [n for n in before if n not in now]:
        level = "warning"
        how = (
            f"it reads another source: open windows keep the rows of {' and '.join(gone)}, and rows read after "
            "the next start are added; to begin empty, give the stage another name"
        )
    yield KeyChange(f"{prefix}from", ", ".join(before), ", ".join(now), COMPATIBLE, how, level)


def _reorder_problem(pipeline: Pipeline, commit: Commit, pairs: StageMatch) -> str | None:
    """Return why the stages cannot take their new positions; None if they can.

    In Postgres, the name of a state table contains the position of its stage.
    """
    store = pipeline.state_store
    if store is None or store.kind != "postgres":
        return None
    before = [s.name for s in commit.stages]
    places = [None if s is None else before.index(s.name) for s in pairs.matched]
    stay = all(place in (None, n) for n, place in enumerate(places))
    behind = all(n >= len(before) for n, place in enumerate(places) if place is None)
    if stay and behind:
        return None
    return (
        "in Postgres, the name of a state table contains the position of its stage; add stages at the end, and remove stages only "
        "from the end; to replace a stage, remove it in one start and add the new one in the next"
    )


def _compare_surroundings(pipeline: Pipeline, commit: Commit, shards: int | None) -> Iterator[KeyChange]:
    """Yield the changes in sources, shards and targets."""
    sources = commit.sources
    for source in pipeline.sources:
        if sources and source.name not in sources:
            how = "it is read from starting_offsets, and holds the watermark until it returns a row or counts as idle"
            query = restore_written_path(source.query or "given")
            yield KeyChange(f'source "{source.name}"', None, query, COMPATIBLE, how)
    for name in sources.keys() - {s.name for s in pipeline.sources}:
        how = "its clock and offsets are removed from the state; rows that were read from it stay in the windows"
        yield KeyChange(f'source "{name}"', plural(commit.clocks[name].rows, "row"), None, COMPATIBLE, how)
    store = pipeline.state_store
    new_shards = shards or (store.shards if store else None)
    if new_shards is not None and new_shards != commit.shards:
        rows = sum(m.rows for m in commit.metas)
        how = f"{rows:,} state rows are distributed over {plural(new_shards, 'shard')}"
        yield KeyChange("shards", commit.shards, new_shards, MIGRATED, how)
    for label, before, after, how in target_changes.describe_target_changes(pipeline, commit):
        yield KeyChange(label, before, after, COMPATIBLE, how)


def _compare_texts(pipeline: Pipeline, state: StageState, prefix: str) -> Iterator[KeyChange]:
    """Yield the changes in SQL and queries. The state stores only their hashes, so equivalent texts also differ."""
    hashes = state.texts

    def short(text: str) -> str | None:
        return f"text {text[:8]}" if text else None

    for key, now in sql_hashes(pipeline).items():
        if (was := hashes.get(key, now)) != now:
            how = "it applies to rows read after the next start; rows in the state do not change"
            yield KeyChange(prefix + key, short(was), short(now), COMPATIBLE, how, "warning")
    for key, now in query_hashes(pipeline).items():
        if (was := hashes.get(key, "")) not in ("", now):  # "" for a DataFrame source
            how = "it is read from the next start on; files and offsets of topics that the state has recorded are not read again"
            yield KeyChange(prefix + key, short(was), short(now), COMPATIBLE, how)


def sql_hashes(pipeline: Pipeline) -> dict[str, str]:
    """Return the hash of each SQL text of a stage, by config key; "" for a key without SQL."""
    transform = pipeline.transform
    hashes = {transform.sql_key(w.name): _hash(transform.sql_of(w.name)) for w in pipeline.input_paths}
    return hashes | {key: _hash(sql) for w in pipeline.input_paths for key, sql in pipeline.sql_chain(w)}


def query_hashes(pipeline: Pipeline) -> dict[str, str]:
    """Return the hash of the query of each source, by label; "" for a DataFrame source."""
    return {f'source "{s.name}" query': _hash(s.query and restore_written_path(s.query)) for s in pipeline.sources}


def _hash(text: str | None) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode()) if text else ""
