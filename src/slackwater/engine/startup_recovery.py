"""The start of a run: publish pending output, and migrate the state to this config.

latest commit ─▶ compare with the config ─▶ publish pending output ─▶ migrate if necessary, in a separate epoch
                 fails if a rebuild is needed                         otherwise continue unchanged
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slackwater.config.pipeline import Pipeline
from slackwater.engine import next_commit
from slackwater.engine.kill_points import PhaseTimer
from slackwater.engine.observer import DriverCallbacks
from slackwater.engine.publishing import Publisher
from slackwater.engine.stage_runner import StageOutput, StageRunner
from slackwater.evolution import commit_from_config, compare, state_migration
from slackwater.evolution.stage_matching import StageMatch, match_stages
from slackwater.state.commit import Commit, StageState
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

        The operators of the stages include the effects of earlier configs that are stored in the state.

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
            comparison = compare.compare_config(self.pipeline, latest, steps=operators, shards=shards)
            comparison.check()
            for change in comparison.changes:
                self.hooks.on_notice(change.level, change.line)
            self.publishing.roll_forward(latest)
        names, clock = [s.name for s in stages], self.hooks.clock_us()
        state = latest or commit_from_config.first_commit(names, operators, shards, clock, state_id)
        pairs = match_stages(self.pipeline.former_names, state)
        state = commit_from_config.with_stages(state, names, operators, pairs.matched)
        migrates = comparison is not None and comparison.migrates
        with_earlier_settings = (
            state_migration.adopt_migrated_state if migrates else state_migration.restore_earlier_settings
        )
        stages = [
            replace(s, operator=with_earlier_settings(s.operator, before))
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
            commit = next_commit.build_next_commit(state).model_copy(update={"committed_us": self.hooks.clock_us()})
            state = self.store.commit(commit)
        if latest is not None:
            self.store.drop_stages(range(len(stages), len(latest.stages)))
        sources = [s.name for s in self.pipeline.sources]
        return stages, commit_from_config.with_sources(state, sources, {s.name: s.inputs for s in stages}, schemas)

    def _add_holds(self, stages: Sequence[StageRunner], state: Commit) -> Commit:
        """Add watermark holds to stages that other stages read.

        If no other stage has read a stage until now, its holds are computed from its state rows.
        """
        updated = []
        for stage, before in zip(stages, state.stages, strict=True):
            holds = before.holds if stage.is_read else None
            if holds is None and stage.is_read:
                holds = tuple(stage.operator.read_holds(task) for task in stage.all_tasks(before, state.epoch))
            updated.append(before if holds == before.holds else before.model_copy(update={"holds": holds}))
        return state.model_copy(update={"stages": tuple(updated)})

    def _migrate(self, stages: Sequence[StageRunner], state: Commit, pairs: StageMatch, shards: int) -> Commit:
        """Migrate the state to this config, and commit it as a separate epoch."""
        epoch = state.epoch + 1
        timer = PhaseTimer(self.hooks.faults, epoch)
        with timer.phase("read"):
            stages_and_states = zip(stages, state.stages, strict=True)
            migrations = [
                state_migration.read_stage(s.operator, self.store, before, epoch, s.number)
                for s, before in stages_and_states
            ]
        with timer.phase("stage"):
            after = tuple(one.write_shards(self.store, shards) for one in migrations)
        with timer.phase("commit"):
            commit = next_commit.build_next_commit(state, shards=shards, stages=_drop_unread_holds(stages, after))
            commit = _with_descriptions(stages, _catch_up_new_stages(stages, commit, pairs))
            return self.store.commit(commit.model_copy(update={"committed_us": self.hooks.clock_us()}))


def _drop_unread_holds(stages: Sequence[StageRunner], after: Sequence[StageState]) -> tuple[StageState, ...]:
    """Drop the holds of stages that no other stage reads."""
    stages_and_states = zip(stages, after, strict=True)
    return tuple(s if stage.is_read else s.model_copy(update={"holds": None}) for stage, s in stages_and_states)


def _catch_up_new_stages(stages: Sequence[StageRunner], state: Commit, pairs: StageMatch) -> Commit:
    """Give new stages the clocks of their sources, and the watermark that their inputs have reached.

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


def _with_descriptions(stages: Sequence[StageRunner], state: Commit) -> Commit:
    return commit_from_config.with_descriptions(state, [(s.name, s.pipeline, s.operator) for s in stages])
