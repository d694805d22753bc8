"""`plan`: what a config changes about the state that is there, without Spark."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from slackwater.config import toml
from slackwater.config.pipeline import Pipeline
from slackwater.evolution import compare
from slackwater.evolution.change import Comparison
from slackwater.runner import target_marks
from slackwater.runner.assemble import store_of
from slackwater.runner.places import check_former
from slackwater.runner.table_changes import with_tables
from slackwater.secrets import masked


def plan_file(file: Path, as_json: bool) -> None:
    """Print each difference with its verdict, and their sum; exit code 1 if a start would refuse. Raises SlackwaterError."""
    pipeline = toml.load(file)
    check_former(pipeline)
    found = _compared(pipeline)
    if as_json:
        print(masked(json.dumps(_object(pipeline, found))))
    elif found is None:
        print(f"{pipeline.name}: {_without(pipeline)}")
    else:
        for change in found.changes:
            print(masked(f"{change.verdict:<11} {change.line}"))
        for line in found.unknown:
            print(masked(f"{'unknown':<11} {line}"))
        print(masked(f"{pipeline.name}: {found.sum.replace('FILE', str(file))}"))
    if found is not None and not found.startable:
        raise typer.Exit(1)


def _compared(pipeline: Pipeline) -> Comparison | None:
    if pipeline.state_store is None or not pipeline.state_store.durable:
        return None
    with closing(store_of(pipeline)) as store, store.peek() as snapshot:
        if snapshot is None:
            return None
        found = compare.compare(pipeline, snapshot.commit, missing=snapshot.missing)
        found = with_tables(found, pipeline, snapshot.commit)
        wrong, _, unread = target_marks.mismatches(pipeline, snapshot.commit, snapshot.missing)
        refused = target_marks.refusal(pipeline, snapshot.commit, wrong)
        waits = "; ".join(why for why in (found.waits, refused) if why) or None
        return replace(found, waits=waits, unknown=(*found.unknown, *unread))


def _without(pipeline: Pipeline) -> str:
    if pipeline.state_store is None or not pipeline.state_store.durable:
        return "its state is in memory: every start begins anew"
    return "there is no state yet: the next start begins it"


def _object(pipeline: Pipeline, found: Comparison | None) -> dict[str, Any]:
    if found is None:
        return {
            "pipeline": pipeline.name,
            "epoch": None,
            "changes": [],
            "startable": True,
            "unknown": [],
            "sum": _without(pipeline),
        }
    listed = [
        {"what": c.what, "state": c.before, "config": c.after, "verdict": c.verdict, "how": c.how}
        for c in found.changes
    ]
    return {
        "pipeline": pipeline.name,
        "epoch": found.epoch,
        "changes": listed,
        "startable": found.startable,
        "unknown": list(found.unknown),
        "sum": found.sum,
    }
