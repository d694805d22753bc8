"""Seeded runs of one source into several targets, with crashes, unavailable targets and a removable target.

rows ─▶ w0 ─▶ w1 ─▶ w2          t0, t1, t2 hold the batch answer of their stage; "some" holds the epochs of its presence
        └▶ t0 └▶ t1 └▶ t2
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.laws.generators.window_chain_runs import MS, comparable_rows, compute_batch_result, draw_window

import slackwater as sw
from slackwater.engine.kill_points import KILL_POINTS
from slackwater.errors import PublishError, StartError
from slackwater.testing.local_pipeline import LocalPipeline

SCHEMA = {"k": "string", "p": "string", "v": "bigint"}
FIXED = ("t0", "t1", "t2")


def draw_several_target_pipeline(seed: int, some: bool = True) -> sw.Pipeline:
    """Draw the pipeline of a seed. With `some`, the pipeline has the target "some"."""
    rng = random.Random(seed)
    windows = [
        draw_window(rng, ["k", "p"], "v", False),
        draw_window(rng, ["k"], "total", False),
        draw_window(rng, [], "total", True),
    ]

    def target(name: str, stage: int) -> sw.Target:
        adds = windows[stage].emit != "updates" and rng.random() < 0.5
        kind = {"connection": "lake", "format": "parquet"} if adds else {"connection": "tables", "mode": "merge"}
        return sw.Target(name=name, from_=f"w{stage}", path=name, **kind)  # type: ignore[arg-type]

    targets = [target(name, n) for n, name in enumerate(FIXED)]
    rng.shuffle(targets)
    more = target("some", rng.randrange(3))
    return sw.pipeline(
        name="law",
        sources=[sw.Source(name="rows", dataframe=object())],
        connections={"tables": sw.DeltaConnection(), "lake": sw.FilesConnection()},
        stages=[sw.Stage(name=f"w{n}", window=w) for n, w in enumerate(windows)],
        targets=[*targets, more] if some else targets,
        state_store=sw.StateStore(kind="files", path="state"),
    )


@dataclass
class SeveralTargetsRun:
    seed: int
    store: Callable[[], Any] | None = None
    every: list[dict[str, Any]] = field(default_factory=list)
    present_epochs: set[int] = field(default_factory=set)  # the epochs with the target "some"
    now_ms: int = 0

    def run(self) -> None:
        rng = random.Random(self.seed)
        present = rng.random() < 0.5
        spec = draw_several_target_pipeline(self.seed, present)
        with LocalPipeline(spec, SCHEMA, shards=rng.choice([1, 2, 3]), store=self.store, capture_losses=False) as test:
            for _ in range(rng.randrange(2, 9)):
                if rng.random() < 0.5:
                    test.crash(rng.choice(KILL_POINTS), shards=rng.choice([None, 2, 3]), nth=rng.choice([1, 1, 2, 3]))
                down = rng.choice(list(test.result().tables)) if rng.random() < 0.3 else None
                before = test.epoch
                self.run_epoch(test, rng, down)
                if present:
                    self.present_epochs |= set(range(before + 1, test.epoch + 1))
                if down is not None and test.target(down).down:
                    present = self.recover_target(test, rng, down, present)
                elif rng.random() < 0.3:
                    present = rng.random() < 0.5
                    test.restart(draw_several_target_pipeline(self.seed, present), shards=rng.choice([1, 2, 4]))
                if rng.random() < 0.2:
                    before = test.epoch
                    test.quiet(500)
                    self.present_epochs |= set(range(before + 1, test.epoch + 1)) if present else set()
            test._faults.step = None
            before = test.epoch
            test.flush()
            self.present_epochs |= set(range(before + 1, test.epoch + 1)) if present else set()
            self.check_targets(spec, test)

    def run_epoch(self, test: LocalPipeline, rng: random.Random, down: str | None) -> None:
        rows = []
        for _ in range(rng.randrange(0, 9)):
            self.now_ms += rng.choice([0, 3, 11, 40, 200])
            ts = (self.now_ms - rng.choice([0, 0, 5, 30])) * MS
            rows.append({"k": rng.choice("ab"), "p": rng.choice("xyz"), "v": rng.randrange(9), "ts": ts})
        self.every += rows
        if down is None:
            test.pipe({"rows": rows})
            return
        test._faults.step = None  # one failure at a time
        test.target(down).down = True
        before = {n: test.target(n).last for n in test.result().tables}
        try:
            test.pipe({"rows": rows})
        except PublishError as error:
            assert f'target "{down}": ' in str(error)
            assert test.target(down).last == before[down]
            state = test._driver.state
            assert state.missing(test._driver.store.delivered_targets()) == [down], (
                "the others have theirs, and that is noted"
            )
        else:
            test.target(down).down = False

    def recover_target(self, test: LocalPipeline, rng: random.Random, down: str, present: bool) -> bool:
        """Bring the target back, for the same or a new process. A config without the target cannot start before."""
        waits = f"epoch {test.epoch} is committed but not yet published"
        if down == "some" and rng.random() < 0.5:
            with pytest.raises(StartError, match=waits):
                test.restart(draw_several_target_pipeline(self.seed, False))
        if rng.random() < 0.3:
            with pytest.raises(PublishError, match=f'target "{down}"'):
                test.restart(draw_several_target_pipeline(self.seed, present))
        for (name, _), target in test._all_targets.items():
            target.down = target.down and name != down
        if rng.random() < 0.5 or not test._open:
            test.restart(draw_several_target_pipeline(self.seed, present), shards=rng.choice([1, 2, 4]))
        return present

    def check_targets(self, spec: sw.Pipeline, test: LocalPipeline) -> None:
        places = {name: target for (name, _), target in test._all_targets.items()}
        for number, name in enumerate(FIXED):
            held = places[name].held
            times = held.with_columns(held[c].dt.timestamp("us") for c in ("window_start", "window_end"))
            expected_rows = compute_batch_result(
                spec.model_copy(update={"stages": spec.stages[: number + 1]}), self.every
            )
            assert comparable_rows(times.iter_rows(named=True)) == comparable_rows(expected_rows), name
        if "some" in places:
            stage = next(t.from_ for t in draw_several_target_pipeline(self.seed).targets if t.name == "some")
            same = places[f"t{str(stage)[1:]}"].rows
            expected_rows = [r for r in same if r["_epoch"] in self.present_epochs]
            assert comparable_rows(places["some"].rows) == comparable_rows(expected_rows), (
                "what came while it was there, and nothing else"
            )
        for stage_state in test._driver.state.stages[1:]:
            assert stage_state.counters.get("late", {}) == {}
        assert test.result().counters.rows_in == len(self.every)
