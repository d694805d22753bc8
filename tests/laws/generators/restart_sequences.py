"""Run random sequences of changes between the starts of one pipeline, and check that each start continues or refuses.

    runs ─ state copied, restored ─ renamed ─ target emptied ─ state emptied ─ resharded ─ runs …

Each row is one minute, in order, and has a window of its own. The oracle is the list of minutes. A start either
produces exactly these rows in the target, or is refused with a cause. After a refusal, the sequence applies one of the
remedies that the message names. `plan` must predict each refusal.

    python -m tests.laws.generators.restart_sequences --runs 300
"""

from __future__ import annotations

import random
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.laws.generators import seed_runner
from tests.support.iceberg_tables import sql_catalog_options

import slackwater as sw
from slackwater.cli import plan
from slackwater.config.state_comparison import REBUILD
from slackwater.connectors.iceberg.tables import IcebergTables
from slackwater.connectors.source import Batch
from slackwater.core.offsets import KafkaOffsets
from slackwater.engine.epoch_driver import EpochDriver
from slackwater.engine.observer import DriverCallbacks
from slackwater.engine.row_policies import ClockSkewWarnings
from slackwater.engine.stage_runner import StageRunner
from slackwater.errors import SlackwaterError
from slackwater.query.results import result_reader
from slackwater.runner import existing_output, renamed_pipeline
from slackwater.runner.component_factory import create_target_writers
from slackwater.state.commit import BatchId
from slackwater.state.store_access import create_store
from slackwater.testing.local_pipeline import LocalPipeline

MINUTE_US = 60_000_000
BEGIN_US = 1_704_067_200_000_000
KINDS = ("files", "files", "delta", "append", "iceberg")
CAUSES = (
    "older copy",
    "another history",
    "contains no epoch of this state",
    "but the state wrote epoch",
    "If this pipeline was renamed",
    "another state of",
    "the state was removed or emptied",
)


class RestartedRun(LocalPipeline):
    """Starts a pipeline like `run_sequence`, on rows of the test, with the state store and the targets of the config."""

    def __init__(self, pipeline: sw.Pipeline, shards: int, choice: str | None = None, rebuild: bool = False) -> None:
        self._choice, self._rebuild = choice, rebuild
        super().__init__(pipeline, {"user": "string"}, shards=shards, state_dir="unused", capture_losses=False)

    def _start_driver(self) -> None:
        pipeline, choice = self.pipeline, self._choice
        store = create_store(pipeline)
        try:
            if self._rebuild:
                existing_output.check_previous_output(pipeline, choice)
                store.start_over()
                latest = None
            else:
                renamed_pipeline.take_over_renamed_state(pipeline, store)
                latest = store.open()
            stored = latest
            if latest is not None:
                latest, _ = existing_output.resolve_mismatches(pipeline, store, latest, choice)
            elif not self._rebuild:
                if (
                    choice != existing_output.KEEP
                    and (question := renamed_pipeline.find_start_refusal(pipeline, store)) is not None
                ):
                    raise question
                existing_output.check_previous_output(pipeline, choice)
            if latest is None and choice == existing_output.ASIDE:
                existing_output.move_previous_output(pipeline)
            state_id = latest.lineage if latest is not None else uuid.uuid4().hex
            held_markers = existing_output.read_unrecorded_markers(pipeline, latest)
            self._targets = create_target_writers(pipeline, self._steps, state_id, latest)  # type: ignore[assignment]
            for target in self._targets.values():
                target.open()
            stages = [
                StageRunner(
                    name,
                    stage_pipeline,
                    self._steps[name],
                    store,
                    self._bound.create_engine(name, stage_pipeline),
                    self._faults.in_worker,
                    number,
                    skew_warnings=ClockSkewWarnings(stage_pipeline),
                )
                for number, (name, stage_pipeline) in enumerate(pipeline.stage_pipelines.items())
            ]
            hooks = DriverCallbacks(lambda: self.now_us, faults=self._faults)
            self._driver = EpochDriver(pipeline, stages, store, self._targets, hooks, held_markers=held_markers)
            self._driver.start(latest, self.shards, {}, state_id, branches=latest is not stored)
        except BaseException:
            store.close()
            raise
        self._open = True

    def _run_epoch(self, payload: Mapping[str, Any], partitions: Mapping[str, Mapping[str, int]]) -> None:
        """Run the epoch with offsets, like a source that can seek."""
        self._batches += 1
        offsets = {"events": KafkaOffsets({"events": {"0": self._batches}})}
        batch = Batch(
            BatchId(checkpoint=self._checkpoint, batch=self._batches), offsets, payload, partitions=partitions
        )
        self._driver.run_batch(batch, 0)

    @property
    def consumed_row_count(self) -> int:
        """Return the number of rows that the state has read, which is also the position of the next row."""
        return int(self._driver.state.stages[0].counters.get("rows_in", 0))


class RestartSequence:
    """Runs one random sequence of starts and changes."""

    def __init__(self, seed: int, home: Path) -> None:
        self.chance, self.home = random.Random(seed), home
        self.kind = self.chance.choice(KINDS)
        self.name, self.formerly, self.names = "counts", None, 0
        self.shards, self.aggregations = 1, ["n"]
        self.minutes = 0
        self.stored_as: str | None = None  # the name under which the state is stored, if a state exists
        self.copies: list[tuple[Path, str]] = []
        self.refused: Counter[str] = Counter()
        self.lines: list[str] = []
        self.starts = 0

    # -- the pipeline --------------------------------------------------------------------------------------------------

    @property
    def pipeline(self) -> sw.Pipeline:
        connections: dict[str, Any] = {"lake": sw.FilesConnection()}
        if self.kind == "files":
            connections["out"], place = sw.FilesConnection(), {"path": str(self.home / "out")}
        elif self.kind == "iceberg":
            connections["out"], place = (
                sw.IcebergConnection(catalog="sql", options=sql_catalog_options(self.home)),
                {"table": "s.t"},
            )
        else:
            mode = "append" if self.kind == "append" else "merge"
            connections["out"], place = sw.DeltaConnection(), {"path": str(self.home / "out"), "mode": mode}
        window = sw.Window(
            kind="tumbling",
            duration_ms="1m",
            event_time_column="ts",
            lateness_ms="0s",
            group_by=["user"],
            max_groups_per_window=1000,
            aggregations=[sw.Aggregation(agg="count", as_="n")],
        )
        return sw.pipeline(
            name=self.name,
            formerly=self.formerly,
            connections=connections,
            sources=[sw.Source(name="events", connection="lake", query=str(self.home / "in"), format="json")],
            window=window.model_copy(update={"max_groups_per_window": 1000 + self.names}),
            target=sw.Target(connection="out", **place),
            state_store=sw.StateStore(kind="files", path=str(self.home / "state"), shards=self.shards),
        )

    @property
    def is_upserting(self) -> bool:
        return self.kind in ("delta", "iceberg")

    # -- starts --------------------------------------------------------------------------------------------------------

    def predict_refusal(self) -> str | None:
        """Return why `plan` predicts that a start is refused, or None."""
        comparison = plan._compare_with_state(self.pipeline)
        if comparison is None:
            return plan._refusal(self.pipeline)
        return comparison.waits or "; ".join(c.line for c in comparison.with_verdict(REBUILD)) or None

    def start_pipeline(self, choice: str | None = None, rebuild: bool = False, flush: bool = False) -> str | None:
        """Start, read all rows, and compare the target with the oracle. Return the refusal, or None."""
        predicted = self.predict_refusal() if choice is None and not rebuild else None
        before = self.read_counts_per_minute()
        try:
            running = RestartedRun(self.pipeline, self.shards, choice, rebuild)
        except SlackwaterError as error:
            assert choice is None and not rebuild, f"a way out was refused: {error}"
            assert any(cause in str(error) for cause in CAUSES), error
            assert predicted is not None and str(error) in predicted, (predicted, str(error))
            assert self.read_counts_per_minute() == before, "a refused start changed the target"
            self.refused[next(cause for cause in CAUSES if cause in str(error))] += 1
            return str(error)
        assert predicted is None, f"plan said what the start did not: {predicted}"
        self.starts += 1
        self.stored_as = self.name
        with running:
            while running.consumed_row_count < self.minutes:
                size = self.chance.randint(1, 3)
                todo = range(running.consumed_row_count, min(running.consumed_row_count + size, self.minutes))
                running.pipe([{"user": "u", "ts": BEGIN_US + m * MINUTE_US} for m in todo])
            if flush:
                running.flush()
        closed = self.minutes if flush else max(self.minutes - 1, 0)
        assert self.read_counts_per_minute() == Counter(dict.fromkeys(range(closed), 1)), (
            self.read_counts_per_minute(),
            closed,
        )
        return None

    def start_with_remedies(self, flush: bool = False) -> None:
        """Start, and after a refusal apply one of the remedies that its message names."""
        for _ in range(4):
            refused = self.start_pipeline(flush=flush)
            if refused is None:
                return
            self.lines.append(refused)
            self.apply_remedy(refused)
            if self.settled:
                return
        raise AssertionError(f"refused again and again: {self.lines}")

    def apply_remedy(self, refused: str) -> None:
        self.settled = False
        if "If this pipeline was renamed" in refused:
            if self.stored_as is None:  # without a state, nothing can be taken over
                self.empty_target()
                self.settled = self.start_pipeline(rebuild=True) is None
                return
            here = "whose state was not found in this state store" not in refused
            self.formerly = refused.partition('formerly = "')[2].partition('"')[0] if here else self.stored_as
            assert self.formerly == self.stored_as, "the question names another pipeline"
            return
        if "another state of" in refused:  # without a state, the pipeline is as before its first commit
            moves = (
                self.kind == "files" and self.names < 2
            )  # a config has one former name: files under earlier names would stay
            if not moves:
                self.empty_target()
            self.settled = self.start_pipeline("aside" if moves else None) is None
            return
        if "the state was removed or emptied" in refused:
            self.settled = self.start_pipeline(rebuild=True) is None
            return
        ways = [w for w in ("aside", "keep") if f"--{'put-aside' if w == 'aside' else w}-output" in refused]
        behind = "restore the target" in refused
        if "aside" in ways and self.chance.random() < 0.6:
            self.settled = self.start_pipeline("aside") is None
        elif "keep" in ways and self.is_upserting and not behind and self.chance.random() < 0.6:
            self.settled = self.start_pipeline("keep") is None
        else:
            if self.kind != "files":
                self.empty_target()
            self.settled = self.start_pipeline("aside" if self.kind == "files" else None, rebuild=True) is None

    settled = False

    # -- changes -------------------------------------------------------------------------------------------------------

    def read_counts_per_minute(self) -> Counter[int]:
        counts_per_minute: Counter[int] = Counter()
        named = self.pipeline.model_copy(update={"formerly": None})
        for name in dict.fromkeys([self.name, *self.used_pipeline_names] if self.kind == "files" else [self.name]):
            with closing(result_reader(named.model_copy(update={"name": name}))) as results:
                frame = results.read()
            if frame is not None and frame.height:
                for start_us, n in zip(frame["window_start"].dt.timestamp("us"), frame["n"], strict=True):
                    counts_per_minute[(start_us - BEGIN_US) // MINUTE_US] += n
        return counts_per_minute

    @property
    def used_pipeline_names(self) -> list[str]:
        return ["counts", *(f"counts{n + 1}" for n in range(self.names))]

    def empty_target(self) -> None:
        if self.kind == "iceberg":
            tables = IcebergTables("sql", "default", sql_catalog_options(self.home))
            if tables.load("s.t") is not None:
                tables.catalog.drop_table("s.t")
        else:
            shutil.rmtree(self.home / "out", ignore_errors=True)

    def apply_random_change(self) -> None:
        action = self.chance.choice(
            ["rows", "rows", "rows", "copy", "copy", "restore", "restore", "rename", "empty", "shards", "lose"]
        )
        if action == "rows":
            self.minutes += self.chance.randint(1, 6)
        elif action == "copy" and self.stored_as is not None:
            path = self.home / f"copy{len(self.copies)}"
            shutil.copytree(self.home / "state", path)
            self.copies.append((path, self.stored_as))
        elif action == "restore" and (
            matching_copies := [path for path, name in self.copies if name == self.stored_as]
        ):
            shutil.rmtree(self.home / "state")
            shutil.copytree(self.chance.choice(matching_copies), self.home / "state")
        elif action == "rename" and self.stored_as is not None:
            self.names += 1
            self.name = f"counts{self.names}"
            self.formerly = self.stored_as if self.chance.random() < 0.5 else None
        elif action == "empty":
            self.empty_target()
        elif action == "lose" and self.stored_as == self.name:
            shutil.rmtree(self.home / "state")
            self.stored_as = None
        elif action == "shards":
            self.shards = self.chance.randint(1, 3)

    def run_sequence(self) -> Counter[str]:
        for _ in range(self.chance.randint(4, 9)):
            if self.chance.random() < 0.8:
                self.minutes += self.chance.randint(1, 6)
            self.start_with_remedies()
            self.apply_random_change()
            if self.chance.random() < 0.5:
                self.start_with_remedies()
        self.minutes += 1
        self.start_with_remedies(flush=True)
        return self.refused


def check_restart_sequence_seed(seed: int) -> tuple[int, ...]:
    """Check one seed. Return the number of successful starts, and the number of refusals by cause."""
    seed_runner.hide_warnings()
    with tempfile.TemporaryDirectory(prefix="slackwater-continued-") as home:
        story = RestartSequence(seed, Path(home))
        refused = story.run_sequence()
        return (story.starts, *(refused[cause] for cause in CAUSES))


if __name__ == "__main__":
    seed_runner.run_seeds(check_restart_sequence_seed, __doc__ or "", ("starts", *CAUSES), 300)
