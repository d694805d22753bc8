"""Check a state directory: every manifest, every referenced file, and whether they are consistent.

    manifests             readable; they describe this pipeline and the epoch in their name; none is missing
    referenced segments   bytes, rows, and the counts in the latest commit
    unpublished outputs   bytes and number of rows
    lists                 bytes, for lists of offsets and of replayed dead letters
    published             not after the latest epoch

No lock is taken. Only problems of commits that still exist at the end are reported, because a runner may delete files
during the check.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import polars as pl
import pyarrow as pa

from slackwater.core.humanize import plural
from slackwater.errors import SlackwaterError, StateError
from slackwater.evolution.pipeline_from_state import find_contradiction, matches_description, restore_operator
from slackwater.maintenance import verify_rows
from slackwater.maintenance.verify_rows import Problem, VerifyReport, format_remedy
from slackwater.operators.base import Operator
from slackwater.state.commit import Commit, OutputMetadata, SegmentMetadata, StageState
from slackwater.state.files.commit_log import list_file
from slackwater.state.files.segments import file_ref
from slackwater.state.files.store import FilesStore
from slackwater.storage.arrow_files import frame_of, open_arrow
from slackwater.storage.base import FileRef, Storage
from slackwater.windows.state_layout import KeyedStateLayout

COPY = "a copy of the state directory"


@dataclass
class _SegmentCheck:
    """A segment to check, and the epochs of the commits that reference it."""

    meta: SegmentMetadata
    stage: int
    shard: int
    shards: int
    epochs: list[int]


@dataclass
class _FilesCheck:
    """A check of a state directory, with its problems so far."""

    store: FilesStore
    report: VerifyReport
    manifests: dict[int, Commit] = field(default_factory=dict)
    segments: dict[str, _SegmentCheck] = field(default_factory=dict)
    steps: dict[tuple[int, int], Operator | None] = field(default_factory=dict)  # by epoch and stage

    @property
    def storage(self) -> Storage:
        return self.store.storage

    def add_problem(self, place: str, problem: str, epochs: Iterable[int] = (), remedy: str = "") -> None:
        self.report.problems.append(Problem(place, problem, tuple(sorted(epochs)), remedy))

    # -- manifests -------------------------------------------------------------------------------------------------

    def path(self, epoch: int) -> str:
        return self.storage.full_name(f"manifests/{epoch:09d}.json")

    def read_manifests(self, epochs: Iterable[int]) -> None:
        for epoch in epochs:
            try:
                commit = self.store.manifest(epoch)
            except StateError as error:
                self.add_problem(self.path(epoch), _strip_remedy(str(error)), (epoch,))
                continue
            self.manifests[epoch] = commit
            for problem in _shape_problems(commit):
                self.add_problem(self.path(epoch), problem, (epoch,))
        for name in sorted(self.storage.sizes("manifests")):
            if not re.fullmatch(r"[0-9]{9,18}\.json", name):
                place, remedy = self.storage.full_name(f"manifests/{name}"), "move it elsewhere; nothing reads it"
                self.add_problem(place, "is not a manifest", (-1,), remedy)

    def check_chain(self, epochs: list[int]) -> None:
        """Check that no manifest is missing, all manifests belong to one state, and no watermark moves backward."""
        for missing in sorted(set(range(epochs[0], epochs[-1] + 1)) - set(epochs)):
            self.add_problem(self.path(missing), "is missing, although earlier and later manifests exist", (missing,))
        ids = [m.state_id for m in self.manifests.values()]
        common_id = max(sorted(set(ids)), key=ids.count, default="")
        for epoch in [e for e, m in self.manifests.items() if m.state_id != common_id]:
            state_id = self.manifests.pop(epoch).state_id
            problem = f"belongs to another state: its state_id is {state_id!r}, but other manifests have {common_id!r}"
            self.add_problem(self.path(epoch), problem, (epoch,))
        for before, after in itertools.pairwise(self.manifests.values()):
            reached = {s.name: s.watermark_us for s in before.stages}
            if any(s.watermark_us < reached.get(s.name, s.watermark_us) for s in after.stages):
                problem = f"has an earlier watermark than epoch {before.epoch}"
                self.add_problem(self.path(after.epoch), problem, (after.epoch,))

    def check_published(self, epochs: list[int]) -> int | None:
        """Check and return the last published epoch; None if it cannot be read."""
        path = self.storage.full_name("published")
        try:
            published = self.store.published_epoch()
        except StateError as error:
            fact, _, remedy = str(error).partition("; ")
            self.add_problem(path, fact.removeprefix(f"{path} "), (-1,), remedy)
            return None
        latest = (self.store.epochs() or [-1])[-1]
        if published > latest:
            problem = f"is missing: {path} says that epoch {published} was published"
            self.add_problem(self.path(published), problem, (published,))
        published_before = [e for e, m in self.manifests.items() if m.staged and e != epochs[-1]] if epochs else []
        if published_before and published < published_before[-1]:
            problem = f"says epoch {published}, but epoch {published_before[-1]} was published before epoch {epochs[-1]} was committed"
            remedy = (
                "restore it; otherwise the next start publishes the latest epoch again, which only some targets ignore"
            )
            self.add_problem(path, problem, (-1,), remedy)
        return published

    # -- files -----------------------------------------------------------------------------------------------------

    def gather_segments(self) -> None:
        for epoch, commit in self.manifests.items():
            for number, stage in enumerate(commit.stages):
                step = self.step(epoch, number)
                if step is not None and (problem := find_contradiction(step, stage)):
                    self.add_problem(self.path(epoch), problem, (epoch,))
                for shard, metas in enumerate(stage.segments):
                    for meta in metas:
                        self.add_segment(meta, number, shard, stage.shards, epoch)

    def add_segment(self, meta: SegmentMetadata, stage: int, shard: int, shards: int, epoch: int) -> None:
        check = self.segments.setdefault(meta.file, _SegmentCheck(meta, stage, shard, shards, []))
        if (check.meta, check.stage, check.shard, check.shards) == (meta, stage, shard, shards):
            check.epochs.append(epoch)
        else:
            problem = f"describes {meta.file} differently from the manifest of epoch {check.epochs[0]}"
            self.add_problem(self.path(epoch), problem, (epoch,))

    def step(self, epoch: int, stage: int) -> Operator | None:
        """Return the operator of a stage; None if the commit does not describe it, or this process cannot create it."""
        if (epoch, stage) not in self.steps:
            try:
                self.steps[epoch, stage] = restore_operator(self.manifests[epoch], stage, trusting=True)
            except SlackwaterError:
                self.steps[epoch, stage] = None
        return self.steps[epoch, stage]

    def check_segment(self, check: _SegmentCheck) -> None:
        meta, path = check.meta, self.storage.full_name(check.meta.file)
        self.report.files += 1
        self.report.rows += meta.rows
        self.report.bytes += meta.bytes
        if problem := self.storage.find_damage(file_ref(meta)):
            self.add_problem(path, problem, check.epochs)
            return
        epoch = check.epochs[-1]  # the newest epoch that references it
        step, state = self.step(epoch, check.stage), self.manifests[epoch].stages[check.stage]
        for problem in self.row_problems(check, step, state):
            self.add_problem(path, problem, check.epochs)

    def row_problems(self, check: _SegmentCheck, step: Operator | None, state: StageState) -> Iterator[str]:
        """Describe the problems in the rows of a segment whose bytes are intact.

        Args:
            check: The segment.
            step: The operator of the stage; None if it is unknown.
            state: The stage in the newest commit that references the segment.
        """
        meta, shard = check.meta, (check.shard, check.shards)
        try:
            table = open_arrow(self.storage.local_path(file_ref(meta)), self.storage.full_name(meta.file))
            if table.num_rows != meta.rows:
                yield f"holds {plural(table.num_rows, 'row')}, but the commit says {meta.rows:,}"
                return
            if step is None:
                return
            frame, exact = frame_of(table), matches_description(step, state)
            problems = list(verify_rows.check_segment_rows(step, meta.kind, frame, *shard, exact))
            yield from (f"holds {text}" if text[0].isdigit() else text for text in problems)
            if exact and not problems and frame.height:
                yield from verify_rows.check_segment_times(step, frame, meta)
        except StateError as error:
            yield _strip_remedy(str(error))
        except (pl.exceptions.PolarsError, pa.ArrowException, TypeError, ValueError) as error:
            yield f"cannot be read as the commit describes it ({type(error).__name__})"

    def check_counts(self, epoch: int) -> None:
        """Check the row counts in the latest commit, for each shard whose segments are all intact."""
        commit = self.manifests[epoch]
        damaged = {p.place for p in self.report.problems}
        for number, stage in enumerate(commit.stages):
            step = self.step(epoch, number)
            if not isinstance(step, KeyedStateLayout) or not matches_description(step, stage):
                continue
            for shard, metas in enumerate(stage.segments):
                if self.path(epoch) in damaged or any(self.storage.full_name(m.file) in damaged for m in metas):
                    continue
                try:
                    rows = self.store.shard(shard, stage.shards, epoch, metas, number).reader(step).scan()
                except StateError:
                    continue  # deleted in the meantime
                for problem in verify_rows.check_row_counts(step, rows, stage, shard):
                    self.add_problem(self.path(epoch), f"shard {shard} holds {problem}", (epoch,))

    def check_outputs(self, epoch: int, published: int | None) -> None:
        """Check the unpublished outputs of the latest commit. The outputs of earlier epochs are always published."""
        commit = self.manifests[epoch]
        if published is not None and published >= epoch:
            return
        for meta in (*commit.output, *commit.letters):
            self.check_output(meta, epoch)

    def check_output(self, meta: OutputMetadata, epoch: int) -> None:
        path, file = self.storage.full_name(meta.file), FileRef(meta.file, meta.checksum)
        self.report.files += 1
        self.report.rows += meta.rows
        if damage := self.storage.find_damage(file):
            self.add_problem(path, f"{damage}; epoch {epoch} is not published yet", (epoch,))
            return
        self.report.bytes += self.storage.local_path(file).stat().st_size
        try:
            count = open_arrow(self.storage.local_path(file), path).num_rows
        except StateError as error:
            self.add_problem(path, _strip_remedy(str(error)), (epoch,))
            return
        if count != meta.rows:
            self.add_problem(path, f"holds {plural(count, 'row')}, but the commit says {meta.rows:,}", (epoch,))

    def check_lists(self) -> None:
        """Check the lists of offsets and of replayed dead letters. The name of a list ends with its checksum."""
        epochs_by_file: dict[str, list[int]] = {}
        for epoch, commit in self.manifests.items():
            for file in commit.lists:
                epochs_by_file.setdefault(file, []).append(epoch)
        for file, epochs in epochs_by_file.items():
            self.report.files += 1
            if damage := self.storage.find_damage(list_file(file)):
                self.add_problem(self.storage.full_name(file), damage, epochs)
            else:
                self.report.bytes += self.storage.local_path(list_file(file)).stat().st_size


def verify_state_files(store: FilesStore) -> VerifyReport:
    """Check everything that the commits of a state need. Damage is reported, never raised."""
    check = _FilesCheck(store, VerifyReport(store.storage.name, "files"))
    epochs = store.epochs()
    check.read_manifests(epochs)
    if not epochs:
        _check_begins(check)
    else:
        check.check_chain(epochs)
    published = check.check_published(epochs)
    check.gather_segments()
    for segment in check.segments.values():
        check.check_segment(segment)
    check.check_lists()
    if epochs and epochs[-1] in check.manifests:
        check.check_outputs(epochs[-1], published)
        check.check_counts(epochs[-1])
    check.report.unread = sum(step is None for (epoch, _), step in check.steps.items() if epoch == epochs[-1])
    return _conclude(check, epochs)


def _check_begins(check: _FilesCheck) -> None:
    try:
        check.store.check_begins()
    except StateError as error:
        place, remedy = check.storage.full_name("manifests"), "restore the manifests from a copy of the directory"
        check.add_problem(place, _strip_remedy(str(error)), (), remedy)


def _conclude(check: _FilesCheck, epochs: list[int]) -> VerifyReport:
    """Complete the report: add remedies, and drop the problems of commits that a runner deleted during the check."""
    report, stored_epochs = check.report, check.store.epochs()
    deleted = {e for e in epochs if e not in stored_epochs and stored_epochs and e < stored_epochs[0]}
    problems = [p for p in report.problems if not p.epochs or set(p.epochs) - deleted]
    affected = {e for p in problems for e in p.epochs}
    sound = [e for e in check.manifests if e not in affected and e not in deleted]
    report.sound, report.epochs = (sound[-1] if sound else None), tuple(e for e in epochs if e not in deleted)
    kept_epochs = sorted({*report.epochs, *(e for e in affected if epochs and e > epochs[-1])})
    report.problems = [
        p if p.remedy else replace(p, remedy=format_remedy(p, kept_epochs, report.sound, COPY)) for p in problems
    ]
    return report


def _strip_remedy(message: str) -> str:
    """Return an error message of the store without its file name and its remedy."""
    fact = message.partition("; ")[0]
    return re.sub(r"^(manifest|state file) \S+ ", "", fact)


def _shape_problems(commit: Commit) -> Iterator[str]:
    for number, stage in enumerate(commit.stages):
        prefix = f"stage {number + 1}: " if commit.stages[1:] else ""
        lengths = {"segments": stage.segments, "groups": stage.groups, "windows": stage.windows}
        for name, per_shard in lengths.items():
            if len(per_shard) != stage.shards:
                yield f"{prefix}{name} of {len(per_shard)} shards, but there are {stage.shards}"
        if any(len(groups) != stage.shards for groups in stage.panes.values()):
            yield f"{prefix}a pane does not have the groups of {plural(stage.shards, 'shard')}"
