"""`plan`: compares a config with the stored state, and prints what the next start would change."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from slackwater.config import toml
from slackwater.config.pipeline import Pipeline
from slackwater.config.state_comparison import COMPATIBLE, KeyChange, StateComparison
from slackwater.errors import StartError, StateError
from slackwater.evolution import config_state_comparison
from slackwater.runner import existing_output, renamed_pipeline
from slackwater.runner.local_paths import check_moved_directories
from slackwater.runner.source_schema_changes import add_table_schema_changes
from slackwater.secret_masking import mask_secrets
from slackwater.state.fork import pending_epoch_error
from slackwater.state.protocol import Snapshot, StateStore
from slackwater.state.store_access import create_store


def print_config_changes(file: Path, as_json: bool) -> None:
    """Print each difference between a config and its state with a verdict, and then a summary.

    Raises typer.Exit with code 1 if startup would fail, and SlackwaterError for other failures.
    """
    pipeline = toml.load(file)
    check_moved_directories(pipeline)
    comparison = _compare_with_state(pipeline)
    refused = None if comparison is not None else _refusal(pipeline)
    if as_json:
        print(mask_secrets(json.dumps(_json_object(pipeline, comparison, refused))))
    elif comparison is None:
        print(mask_secrets(refused or f"{pipeline.name}: {_no_state_text(pipeline)}"))
    else:
        for change in comparison.changes:
            print(mask_secrets(f"{change.verdict:<11} {change.line}"))
        for line in comparison.unknown:
            print(mask_secrets(f"{'unknown':<11} {line}"))
        print(mask_secrets(f"{pipeline.name}: {comparison.sum.replace('FILE', str(file))}"))
    if refused is not None or (comparison is not None and not comparison.startable):
        raise typer.Exit(1)


def _compare_with_state(pipeline: Pipeline) -> StateComparison | None:
    if pipeline.state_store is None or not pipeline.state_store.durable:
        return None
    with closing(create_store(pipeline)) as store:
        former = renamed_pipeline.pipeline_under_former_name(pipeline, store)
        if former is None:
            return _compare_with_store(pipeline, store, pipeline)
    with closing(create_store(former)) as store:
        comparison = _compare_with_store(pipeline, store, former)
    if comparison is None:
        return None
    how = "the next start takes over its state, and sets the old state aside"
    return replace(
        comparison, changes=(KeyChange("name", former.name, pipeline.name, COMPATIBLE, how), *comparison.changes)
    )


def _compare_with_store(pipeline: Pipeline, store: StateStore, target_pipeline: Pipeline) -> StateComparison | None:
    """Compare a pipeline with the state in a store. Return None if the store is empty.

    `target_pipeline`: the pipeline under the name that its targets have recorded, which may be a former name.
    """
    with store.peek() as snapshot:
        if snapshot is None:
            return None
        commit = snapshot.commit
        comparison = config_state_comparison.compare_config(pipeline, commit, missing=snapshot.missing)
        comparison = add_table_schema_changes(comparison, pipeline, commit)
        wrong, _, unread = existing_output.find_mismatches(target_pipeline, commit, snapshot.missing)
        refused = [_damage_text(snapshot), existing_output.mismatch_error(target_pipeline, commit, wrong)]
        if target_pipeline is not pipeline and snapshot.missing:
            refused.append(pending_epoch_error(commit.pipeline, commit.epoch))
        pending_reason = "; ".join(str(why) for why in (comparison.waits, *refused) if why) or None
        return replace(comparison, waits=pending_reason, unknown=(*comparison.unknown, *unread))


def _refusal(pipeline: Pipeline) -> str | None:
    """Return why the pipeline, which has no state, could not start; None if it could."""
    with closing(create_store(pipeline)) as store:
        question = renamed_pipeline.find_start_refusal(pipeline, store)
    if question is not None:
        return str(question)
    try:
        existing_output.check_previous_output(pipeline, None)
    except StartError as error:
        return str(error)
    return None


def _damage_text(snapshot: Snapshot) -> str | None:
    try:
        snapshot.check()
    except StateError as error:
        return str(error)
    return None


def _no_state_text(pipeline: Pipeline) -> str:
    if pipeline.state_store is None or not pipeline.state_store.durable:
        return "its state is in memory: every start begins with an empty state"
    return "there is no state yet: the next start creates it"


def _json_object(pipeline: Pipeline, comparison: StateComparison | None, refused: str | None = None) -> dict[str, Any]:
    if comparison is None:
        return {
            "pipeline": pipeline.name,
            "epoch": None,
            "changes": [],
            "startable": refused is None,
            "unknown": [],
            "sum": refused or _no_state_text(pipeline),
        }
    changes = [
        {"what": c.key, "state": c.before, "config": c.after, "verdict": c.verdict, "how": c.how}
        for c in comparison.changes
    ]
    return {
        "pipeline": pipeline.name,
        "epoch": comparison.epoch,
        "changes": changes,
        "startable": comparison.startable,
        "unknown": list(comparison.unknown),
        "sum": comparison.sum,
    }
