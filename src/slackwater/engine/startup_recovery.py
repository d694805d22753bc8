"""The start of a run: publish pending output, and migrate the state to this config.

latest commit ─▶ compare with the config ─▶ publish pending output ─▶ migrate if necessary, in a separate epoch
                 fails if a rebuild is needed                         otherwise continue unchanged
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slackwater.config.pipeline import Pipeline
from slackwater.config.spec_base import spec_to_data
from slackwater.config.step_base import StepBase
from slackwater.engine import next_commit
from slackwater.engine.kill_points import PhaseTimer
from slackwater.engine.observer import DriverCallbacks
from slackwater.engine.publishing import Publisher
from slackwater.engine.stage_runner import StageOutput, StageRunner
from slackwater.evolution import config_state_comparison, state_migration
from slackwater.evolution.stage_matching import StageMatch, match_stages
from slackwater.operators.base import Operator
from slackwater.state.commit import ClockRecord, Commit, SourceRecord, StageState
from slackwater.state.protocol import StateStore
from slackwater.watermark import NO_WATERMARK


@dataclass(frozen=True)
class StartupRecovery:
    """Starts one pipeline on one state store."""

    pipeline: Pipeline
    store: StateStore
    publishing: Publisher
    hooks: DriverCallbacks

    def run(
        self,
        stages: Sequence[StageRunner],
        latest: Commit | None,
        shards: int,
        schemas: Mapping[str, str],
        state_id: str,
        branches: bool = False,
    ) -> tuple[list[StageRunner], Commit]:
        """Return the stages and the state to continue from.

        The returned operators include the effects of earlier configs, as stored in the state.

        Args:
            stages: The stages of this config.
            latest: The latest commit; None for a new state.
            shards: The number of shards.
            schemas: The schema of each source, in Spark's JSON format.
            state_id: The id of the state, if this run creates it.
            branches: Whether `latest` begins a branch, which is committed even without a migration.

        Raises:
            StateError: The state cannot be used with this config.
            StartError: A target cannot be opened, or this config would publish pending output elsewhere.
            PublishError: Pending output cannot be published.
        """
        operators = [s.operator for s in stages]
        comparison = None
        if latest is None:
            self.publishing.check_available()
        if latest is not None:
            next_commit.sum_counters(latest)  # raises StateError before anything is published
            comparison = config_state_comparison.compare_config(self.pipeline, latest, steps=operators, shards=shards)
            comparison.check()
            for change in comparison.changes:
                self.hooks.on_notice(change.level, change.line)
            self.publishing.roll_forward(latest)
        names, clock = [s.name for s in stages], self.hooks.clock_us()
        state = latest or first_commit(names, operators, shards, clock, state_id)
        pairs = match_stages(self.pipeline.former_names, state)
        state = _with_stages(state, names, operators, pairs.matched)
        migrates = comparison is not None and comparison.migrates
        stages = [
            replace(s, operator=state_migration.operator_for_state(s.operator, before, migrates))
            for s, before in zip(stages, state.stages, strict=True)
        ]
        for stage, before in zip(stages, pairs.matched, strict=True):
            self.store.prepare(stage.operator, stage.number, begins=before is None)
        if migrates:
            state = self._migrate(stages, state, pairs, shards)
        else:
            state = _catch_up_new_stages(stages, self._add_holds(stages, state), pairs)
        state = _with_descriptions(stages, state)
        if branches and not migrates:
            state = self.store.commit(state.successor(committed_us=self.hooks.clock_us()))
        if latest is not None:
            self.store.drop_stages(range(len(stages), len(latest.stages)))
        sources = [s.name for s in self.pipeline.sources]
        return stages, _with_sources(state, sources, {s.name: s.inputs for s in stages}, schemas)

    def _add_holds(self, stages: Sequence[StageRunner], state: Commit) -> Commit:
        """Add watermark holds to the stages that other stages read.

        The holds of a stage that no other stage has read until now are computed from its state rows.
        """
        updated = []
        for stage, before in zip(stages, state.stages, strict=True):
            holds = before.holds if stage.is_read else None
            if holds is None and stage.is_read:
                holds = tuple(
                    stage.operator.read_watermark_holds(task) for task in stage.all_tasks(before, state.epoch)
                )
            updated.append(before if holds == before.holds else before.model_copy(update={"holds": holds}))
        return state.model_copy(update={"stages": tuple(updated)})

    def _migrate(self, stages: Sequence[StageRunner], state: Commit, pairs: StageMatch, shards: int) -> Commit:
        """Migrate the state to this config, and commit it as a separate epoch."""
        epoch = state.epoch + 1
        timer = PhaseTimer(self.hooks.faults, epoch)
        with timer.phase("read"):
            stages_and_states = zip(stages, state.stages, strict=True)
            migrations = [
                state_migration.read_stage_state(s.operator, self.store, before, epoch, s.number)
                for s, before in stages_and_states
            ]
        with timer.phase("stage"):
            after = tuple(one.write_shards(self.store, shards) for one in migrations)
        with timer.phase("commit"):
            commit = state.successor(shards=shards, stages=_drop_unread_holds(stages, after))
            commit = _with_descriptions(stages, _catch_up_new_stages(stages, commit, pairs))
            return self.store.commit(commit.model_copy(update={"committed_us": self.hooks.clock_us()}))


def _drop_unread_holds(stages: Sequence[StageRunner], after: Sequence[StageState]) -> tuple[StageState, ...]:
    """Drop the holds of stages that no other stage reads."""
    stages_and_states = zip(stages, after, strict=True)
    return tuple(s if stage.is_read else s.model_copy(update={"holds": None}) for stage, s in stages_and_states)


def _catch_up_new_stages(stages: Sequence[StageRunner], state: Commit, pairs: StageMatch) -> Commit:
    """Give new stages the clocks of their sources and the watermark of their inputs.

    The output watermark of a stage that no other stage has read until now is derived from its current state.
    """
    began = {s.name for s, before in zip(stages, pairs.matched, strict=True) if before is None or before.holds is None}
    results: dict[str, StageOutput] = {}
    clocks, caught_up = state.clocks, []
    for stage, now, before in zip(stages, state.stages, pairs.matched, strict=True):
        if before is None:
            now = now.model_copy(update={"clocks": {n: clocks[n] for n in stage.inputs if n in clocks}})
            upstream = {n: results[n] for n in stage.inputs if n in results}
            watermark = stage.watermark(now.watermark_us, next_commit.input_clocks(stage.pipeline, now), upstream)
            now = now.model_copy(update={"watermark_us": watermark})
        if stage.name in began:
            now = now.model_copy(
                update={"output_watermark_us": stage.output_watermark_at(now, now.watermark_us, NO_WATERMARK)}
            )
        results[stage.name] = StageOutput(None, now.promised_us)
        caught_up.append(now)
    return state.model_copy(update={"stages": tuple(caught_up)})


def first_commit(
    names: Sequence[str], operators: Sequence[Operator], shards: int, clock_us: int, state_id: str = ""
) -> Commit:
    """Return the commit before the first epoch, in which all stages are empty. This commit is never stored."""
    stages = (_first_state(name, operator, shards) for name, operator in zip(names, operators, strict=True))
    return Commit(
        pipeline=operators[0].pipeline,
        state_id=state_id,
        epoch=-1,
        committed_us=clock_us,
        shards=shards,
        stages=tuple(stages),
    )


def _first_state(name: str, operator: Operator, shards: int) -> StageState:
    """Return the state of a stage before its first epoch."""
    none = (0,) * shards
    return StageState(
        name=name,
        segments=((),) * shards,
        groups=none,
        windows=none,
        fingerprint=operator.fingerprint,
        emission=operator.emission,
    )


def _with_stages(
    commit: Commit, names: Sequence[str], operators: Sequence[Operator], matched: Sequence[StageState | None]
) -> Commit:
    """Return the commit with the stages of this config, each of which is new or continues a stage of the commit.

    `matched`: see `stage_matching.StageMatch`.
    """
    stages = (
        before or _first_state(name, operator, commit.shards)
        for name, operator, before in zip(names, operators, matched, strict=True)
    )
    return commit.model_copy(update={"stages": tuple(stages)})


def _with_descriptions(stages: Sequence[StageRunner], state: Commit) -> Commit:
    """Add the descriptions of the stages of this config."""
    described = []
    for stage, now in zip(stages, state.stages, strict=True):
        description = {
            "name": stage.name,
            "described": _step_description(stage.pipeline.transform.step, stage.operator),
            "fingerprint": stage.operator.fingerprint,
            "texts": config_state_comparison.sql_hashes(stage.pipeline)
            | config_state_comparison.query_hashes(stage.pipeline),
        }
        described.append(now.model_copy(update=description))
    return state.model_copy(update={"stages": tuple(described)})


def _step_description(step: StepBase, operator: Operator) -> dict[str, Any]:
    """Return the description of a step for the commit; empty if the step contains values that cannot be stored.

    Every commit contains this description, so that a state can be read without a config. The description does not
    contain SQL, which may contain secrets; see `config_state_comparison.sql_hashes`.
    """
    data = spec_to_data(step)
    return {} if data is None else operator.description(data)


def _with_sources(
    commit: Commit, names: Sequence[str], inputs: Mapping[str, Sequence[str]], schemas: Mapping[str, str]
) -> Commit:
    """Return the commit with the sources of this config. A removed source is dropped together with its offsets.

    `names`: the sources. `inputs`: the inputs of each stage. `schemas`: the schemas of the sources that have one.
    """
    sources = {n: commit.sources.get(n, SourceRecord()).model_copy(update={"columns": schemas.get(n)}) for n in names}
    # a new stage starts with the clocks of the other stages
    clocks = {n: clock for n, clock in commit.clocks.items() if n in names}
    stages = (
        s.model_copy(update={"clocks": {n: s.clocks.get(n) or clocks.get(n, ClockRecord()) for n in inputs[s.name]}})
        for s in commit.stages
    )
    return commit.model_copy(update={"sources": sources, "stages": tuple(stages)})
