"""The page model: all blocks of a page, built from the same commit, so that they are consistent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from slackwater.config.pipeline import Pipeline
from slackwater.config.window import KINDS_OF_WINDOW
from slackwater.core.humanize import format_time
from slackwater.core.lateness_histogram import NOTHING, LatenessStats, format_lateness_advice
from slackwater.errors import SlackwaterError, StateError, Topic
from slackwater.evolution.pipeline_from_state import rebuild_pipeline
from slackwater.maintenance.state_sizes import list_kept_commits
from slackwater.query import state_locator
from slackwater.query.state_inspection import Texts
from slackwater.query.why_report import WhyReport, quote_stage
from slackwater.query.why_report_builder import add_key_history, build_why_report_from_snapshot
from slackwater.state.commit import Commit
from slackwater.state.protocol import Snapshot, StateStore
from slackwater.state.run_history import Run
from slackwater.ui.blocks.commit_and_runs import Header, Runs, build_header, build_runs
from slackwater.ui.blocks.join_buffers import JoinBuffers, build_buffers
from slackwater.ui.blocks.key import KeyView, build_key
from slackwater.ui.blocks.row_accounting import RowAccounting, build_accounting
from slackwater.ui.blocks.stages import StageSummary, build_stages
from slackwater.ui.blocks.throughput_and_size import (
    BacklogPoller,
    StateGrowth,
    Throughput,
    build_growth,
    build_throughput,
)
from slackwater.ui.blocks.upcoming_closes import UpcomingCloses, build_closes
from slackwater.ui.blocks.watermark import WatermarkBlock, build_watermark


class NoCommitError(StateError):
    """Raised when the state does not have a commit yet, which is not a failure."""


WhyRenderer = Callable[[WhyReport, str], Iterable[str]]  # formats a `why` report about a config file as lines


@dataclass(frozen=True)
class PageSource:
    """A pipeline that has a page.

    Args:
        file: The config file, for commands that the page suggests.
        render_why: Formats a `why` report.
        poller: Polls the sources for their backlogs.
        is_described: Whether the config is unknown, in which case `pipeline` comes from the state and `file` is a
            placeholder.
    """

    pipeline: Pipeline
    file: str
    store: StateStore
    render_why: WhyRenderer
    poller: BacklogPoller = field(default_factory=BacklogPoller)
    is_described: bool = False

    def pipeline_at(self, commit: Commit) -> Pipeline:
        """Return the pipeline as the config or, if the config is unknown, the commit describes it.

        Raises StateError if the commit does not describe its pipeline.
        """
        return rebuild_pipeline(commit) if self.is_described else self.pipeline


@dataclass(frozen=True)
class PageModel:
    """The blocks of one commit, for the whole pipeline or for one stage.

    Args:
        tag: A tag that changes whenever the page changes.
        looked_us: When the model was built (µs since 1970, UTC).
        closing: The open windows of `closing_of`, the last stage that has windows; None if no stage has windows.
        pace: The throughput of the pipeline; None for a stage.
        joins: The buffers of `joined_of`, the last join; None if there is no join.
        kept_epochs: The kept epochs up to this one.
        stage: The name of the stage; None for the whole pipeline.
        runs: The runs of the pipeline; None for a stage or an earlier commit.
    """

    tag: str
    looked_us: int
    top: Header
    watermark: WatermarkBlock
    rows: RowAccounting
    closing: UpcomingCloses | None
    size: StateGrowth
    pace: Throughput | None
    joins: JoinBuffers | None
    stages: tuple[StageSummary, ...]
    kept_epochs: tuple[int, ...]
    stage: str | None = None
    closing_of: StageSummary | None = None
    joined_of: StageSummary | None = None
    runs: Runs | None = None


def load_model(watched: PageSource, now_us: int, epoch: int | None = None, stage: str | None = None) -> PageModel:
    """Build the page model of a commit.

    Args:
        watched: The pipeline.
        now_us: The current time (µs since 1970, UTC).
        epoch: The epoch of the commit; None for the latest.
        stage: The name of a stage; None for the whole pipeline.

    Raises StateError if the commit is missing or damaged, or if the config does not match it. Raises StartError for an
    unknown stage.
    """
    store = watched.store
    with open_snapshot(watched, epoch) as snapshot:
        recorded_runs = store.runs() if epoch is None else None
        return _build_model(watched, snapshot, list_kept_commits(store), store.runner(), now_us, stage, recorded_runs)


def _missing_commit_error(watched: PageSource) -> StateError:
    runner = watched.store.runner()
    failure = build_runs(watched.store.runs(), runner, -1).failure
    if failure is not None:
        error_text = "" if failure.error is None else f": {failure.error}"
        line = f"the run that started at {format_time(failure.started_us)} {failure.said}{error_text}"
        return StateError(f"{watched.pipeline.name}: there is no state yet; {line}", Topic.NO_STATE)
    begins = f"start the pipeline to create it: slackwater run {watched.file}"
    if runner is not None:
        begins = f"{runner} is working on the first epoch; this page shows it as soon as it is committed"
    return NoCommitError(f"{watched.pipeline.name}: there is no state yet; {begins}")


def load_models(watched: PageSource, now_us: int) -> tuple[PageModel, list[PageModel]]:
    """Build the page models of the latest commit: one for the whole pipeline, and one per stage if it has several.

    Raises StateError if the commit is missing or damaged, or if the config does not match it.
    """
    with open_snapshot(watched) as snapshot:
        common = list_kept_commits(watched.store), watched.store.runner(), now_us
        pipeline_model = _build_model(watched, snapshot, *common, recorded_runs=watched.store.runs())
        several = pipeline_model.stages if pipeline_model.stages[1:] else ()
        return pipeline_model, [_build_model(watched, snapshot, *common, s.name) for s in several]


def _build_model(
    watched: PageSource,
    snapshot: Snapshot,
    commits: Iterable[Commit],
    runner: str | None,
    now_us: int,
    stage: str | None = None,
    recorded_runs: Sequence[Run] | None = None,
) -> PageModel:
    """Build the page model of a snapshot, for the whole pipeline or for one stage.

    `recorded_runs`: the runs of the pipeline; None for a stage or an earlier commit.
    """
    commit = snapshot.commit
    # since the snapshot was taken, a runner may have committed again or removed this commit's record
    history = [*(m for m in commits if m.epoch < commit.epoch), commit]
    pipeline = watched.pipeline_at(commit)
    pipeline_report = build_why_report_from_snapshot(pipeline, snapshot, runner, now_us)
    summaries = build_stages(commit, pipeline_report)
    report, shown_stages = pipeline_report, summaries
    if stage is not None and pipeline_report.stages:
        index = state_locator.find_stage_index(commit, stage, "stage")
        report = replace(
            pipeline_report, **vars(next(s for s in pipeline_report.stages if s.stage == stage)), stages=()
        )
        shown_stages = tuple(s for s in summaries if s.name == stage)
        snapshot = state_locator.narrow_snapshot(snapshot, index)
        names = [[s.name for s in m.stages] for m in history]
        history = [
            state_locator.narrow_commit(m, n.index(stage)) for m, n in zip(history, names, strict=True) if stage in n
        ]
    else:
        stage = None
    closing_of, joined_of = _last_stage(shown_stages, KINDS_OF_WINDOW), _last_stage(shown_stages, ("join",))
    counted = build_accounting(history, *_lateness(report))
    return PageModel(
        _compute_tag(commit, runner, report.is_published, (recorded_runs or ())[-1:]),
        now_us,
        build_header(report, counted, list(watched.render_why(report, watched.file)), stage),
        build_watermark(report, history),
        counted,
        None if closing_of is None else build_closes(_stage_snapshot(snapshot, closing_of)),
        build_growth(history),
        None if stage is not None else build_throughput(history, watched.poller.poll(pipeline, snapshot), now_us),
        None
        if joined_of is None
        else build_buffers(_stage_snapshot(snapshot, joined_of), _join_sources(pipeline_report, joined_of.name)),
        summaries,
        tuple(m.epoch for m in history),
        stage,
        closing_of,
        joined_of,
        None if stage is not None or recorded_runs is None else build_runs(recorded_runs, runner, commit.epoch),
    )


def _last_stage(summaries: Sequence[StageSummary], kinds: Container[str]) -> StageSummary | None:
    """Return the last stage whose kind is one of `kinds`; None if there is none."""
    return next((s for s in reversed(summaries) if s.kind in kinds), None)


def _stage_snapshot(snapshot: Snapshot, stage: StageSummary) -> Snapshot:
    return state_locator.narrow_snapshot(snapshot, state_locator.find_stage_index(snapshot.commit, stage.name))


def _join_sources(report: WhyReport, stage: str) -> list[str]:
    """Return the names of the left and the right input of a join."""
    return [side.source for s in report.reported_stages if s.stage == stage for side in s.sides]


def _lateness(report: WhyReport) -> tuple[LatenessStats, str | None]:
    """Return the lateness statistics and the advice for a page, if only one stage reads sources.

    If several stages read sources, return empty statistics, and the advice for all of these stages as one string.
    """
    readers = [s for s in report.reported_stages if s.lateness.rows]
    if len(readers) == 1:
        return readers[0].lateness, format_lateness_advice(readers[0].lateness)
    each = [
        f"stage {quote_stage(s.stage)}: {advice}"
        for s in readers
        if (advice := format_lateness_advice(s.lateness)) is not None
    ]
    return NOTHING, "; ".join(each) or None


def _compute_tag(commit: Commit, runner: str | None, published: bool, recorded_runs: Sequence[Run] = ()) -> str:
    """Return a tag that changes when the commit, the runner or the latest run changes, or the epoch is published."""
    rest = f"{commit.state_id}\0{commit.committed_us}\0{runner}\0{published}\0{recorded_runs}"
    return f"{commit.epoch}-{hashlib.sha256(rest.encode()).hexdigest()[:12]}"


@contextmanager
def open_snapshot(watched: PageSource, epoch: int | None = None) -> Iterator[Snapshot]:
    """Yield a snapshot of a commit, by default the latest. Raises StateError if there is none."""
    with watched.store.peek(epoch) as snapshot:
        if snapshot is None:
            raise _missing_commit_error(watched)
        yield snapshot


def select_window_stage(snapshot: Snapshot, stage: str | None) -> tuple[Snapshot, str | None]:
    """Narrow a snapshot to one stage. Return the snapshot and the stage's name, or None for a single stage.

    `stage`: the name; None selects the last stage with windows. Raises StartError for an unknown stage.
    """
    stages = snapshot.commit.stages
    if not stages[1:]:
        return snapshot, None
    windowed = [s.name for s in stages if s.fingerprint.get("kind") in KINDS_OF_WINDOW]
    name = stage if stage is not None else (windowed or [stages[-1].name])[-1]
    return state_locator.narrow_snapshot(snapshot, state_locator.find_stage_index(snapshot.commit, name, "stage")), name


def load_key(watched: PageSource, key: Texts, now_us: int, stage: str | None = None) -> KeyView:
    """Return the view of one key in the latest commit.

    Args:
        watched: The pipeline.
        key: The values of the key columns as strings; None for NULL.
        now_us: The current time (µs since 1970, UTC).
        stage: The name of the stage; None for the last stage with windows.

    Raises StateError if the state cannot be read, and StartError if the key is invalid.
    """
    with open_snapshot(watched) as snapshot:
        stage_snapshot, name = select_window_stage(snapshot, stage)
        build_key(stage_snapshot, key)  # raises an error about the key that names its stage
        try:
            report = build_why_report_from_snapshot(
                watched.pipeline_at(snapshot.commit), snapshot, None, now_us, key, name
            )
            if not watched.is_described:
                report = add_key_history(watched.pipeline, watched.store, report, key)
        except SlackwaterError:
            return build_key(stage_snapshot, key)
        history = None if report.key is None else report.key.history
        return build_key(stage_snapshot, key, _lines_of_key(watched, report), history)


def _lines_of_key(watched: PageSource, report: WhyReport) -> list[str]:
    """Return the lines of a `why` report about its key, which are the last paragraph."""
    lines = list(watched.render_why(report, watched.file))
    begins = max((n for n, line in enumerate(lines) if not line), default=-1) + 1
    return lines[begins:]
