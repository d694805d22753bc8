"""Narrows a commit or a snapshot to one stage, so that code that inspects a window or a join sees only that stage."""

from __future__ import annotations

from dataclasses import replace

from slackwater.config.message_format import format_value, suggest_word_or_list
from slackwater.errors import StartError
from slackwater.joins.compiled_join import CompiledJoin
from slackwater.joins.join_buffers import Buffers
from slackwater.state.commit import Commit
from slackwater.state.protocol import Snapshot, StateReader
from slackwater.windows.state_rows import KeyedStateLayout


def find_stage_index(commit: Commit, name: str, option: str = "--stage") -> int:
    """Return the index of a stage, from 0. Raises StartError, which names `option`, if the stage does not exist."""
    names = [s.name for s in commit.stages]
    if name not in names:
        raise StartError(
            f"{commit.pipeline}: {option}: found {format_value(name)}, which is not a stage of the state in epoch {commit.epoch}"
            f"{suggest_word_or_list(name, names)}; available: {', '.join(names)}"
        )
    return names.index(name)


def narrow_commit(commit: Commit, number: int) -> Commit:
    """Return a commit with only this stage, the sources that it reads, and the targets that receive its results."""
    stage = commit.stages[number]
    if not commit.stages[1:]:
        return commit
    return commit.model_copy(
        update={
            "stages": (stage,),
            "sources": {n: s for n, s in commit.sources.items() if n in stage.clocks},
            "targets": {n: t for n, t in commit.targets.items() if t.stage == stage.name},
            "output": commit.output_of(stage.name),
            "letters": (),
            "counters": {},
        }
    )


def narrow_snapshot(snapshot: Snapshot, number: int) -> Snapshot:
    """Return a snapshot of only this stage, which becomes stage 0."""
    if not snapshot.commit.stages[1:]:
        return snapshot

    def rows_of(shard: int, logic: KeyedStateLayout, stage: int) -> StateReader:
        return snapshot.reader(shard, logic, number)

    def buffers_of(shard: int, logic: CompiledJoin, stage: int) -> Buffers:
        return snapshot.buffers(shard, logic, number)

    return replace(snapshot, commit=narrow_commit(snapshot.commit, number), rows_of=rows_of, buffers_of=buffers_of)
