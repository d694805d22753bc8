"""A run follows its sources: it plans their epochs itself where they can be asked without Spark, else Spark's stream does."""

from __future__ import annotations

import shutil

from slackwater.core.offsets import Offsets
from slackwater.runner import query
from slackwater.runner.epochs import Epochs
from slackwater.runner.loop import Loop
from slackwater.runner.runner import Parts, Runner
from slackwater.runner.watched_files import WatchedFiles
from slackwater.sources.base import Seekable
from slackwater.sources.planning import planners_of
from slackwater.spark import session


def follow(runner: Runner, parts: Parts, *, available_now: bool, stated: bool) -> None:
    """Run to the end of the input (`available_now`) or until the runner is to stop. `stated`: sources begin where the start
    said, not the config."""
    anchor(parts, stated)
    files = WatchedFiles(runner.pipeline.name, parts, runner.reporter)
    epochs = Epochs(runner, parts, files)
    planners = planners_of(parts.streams, parts.driver.state, files.read)
    if available_now:
        if planners is not None:
            planners.until_now()
        runner.reporter.expect_files(files.to_come() if planners is None else planners.files_left)
    files.tell_changed(None)
    runner.reporter.observers.reading()
    if planners is None:
        query.follow(epochs, available_now)
    else:
        _forget_checkpoints(parts)
        session.lists_here(parts.session)
        Loop(epochs, planners, available_now).follow()
    if available_now:
        files.tell_changed(None)
        for engine in parts.engines:
            engine.looks.tell_missing()


def anchor(parts: Parts, stated: bool) -> None:
    """Commit what "latest" means for sources that were never read before anything else is."""
    found: dict[str, Offsets] = {}
    for source in parts.streams.sources:
        if not isinstance(source, Seekable) or parts.driver.state.sources[source.name].offsets is not None:
            continue
        latest = source.spec.starting_offsets == "latest"
        # what is stated: also if this run dies before its first epoch
        if (at := source.latest() if latest else source.stated() if stated else None) is not None:
            found[source.name] = at
    if found:
        parts.driver.anchor(found)


def _forget_checkpoints(parts: Parts) -> None:
    """Those of former runs that Spark planned: the state alone says where to go on."""
    home = parts.streams.store.checkpoint
    for one in home.iterdir() if home.is_dir() else ():
        shutil.rmtree(one, ignore_errors=True)
