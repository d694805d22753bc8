"""Messages about the runner and the state of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence

from slackwater.messages.family import STATE, MessageFamily

FAMILIES: Sequence[MessageFamily] = (
    MessageFamily(
        "Another runner holds the pipeline",
        ("LockHeldError",),
        "A pipeline has one runner at a time. The message names the process and the machine that hold the lock. The "
        "lock ends with its process. In an object store, the lock is a lease, which expires at most 35 seconds after "
        "its process has ended.",
        "Stop that process first. Commands that only read (`why`, `show`, `state`, `ui`) need no lock.",
    ),
    MessageFamily(
        "Another runner took over",
        ("FencedError",),
        "The store holds a commit that this runner did not make, so this runner stops before it writes anything. "
        "This happens when a runner is paused or loses its connection, and another one takes over.",
        "Nothing: the other runner continues, and no rows are lost or duplicated. If there should be no other runner, "
        "find out who started it.",
    ),
    MessageFamily(
        "There is no state to read",
        ("StateError", "StartError"),
        "The command reads a state, but the location holds no state yet, or no state of this pipeline, or the state "
        "is only in the memory of a runner.",
        "Run the pipeline once, or pass the location that `[state_store]` names. If several pipelines share the "
        "location, also pass `--pipeline`.",
        (
            "there is no state yet",
            "has no commit yet",
            "no pipeline has its state there",
            "no such state directory",
            "has no state there",
            "several pipelines have their state",
            "its state is in memory",
            "this is the state of",
        ),
    ),
    MessageFamily(
        "The state was written for another config",
        ("StateError", "StartError"),
        "The config now has another window, other keys or other columns than the state was written for. The state "
        "was not changed.",
        "`slackwater plan FILE` lists the differences. Change the config back, or start over with `--rebuild`, which "
        "moves the state away: [what may change](state/change.md).",
        (
            "was written for another",
            "does not describe its window",
            "does not say which",
            "only windows can be inspected",
            "its columns changed since",
            "the config has changed since",
            "was rewritten for another value of emit",
        ),
    ),
    MessageFamily(
        "The state was written by another version",
        STATE,
        "The state has a format or a field that this version does not support.",
        "Install the version that wrote the state, or a newer version: [upgrading](upgrade.md).",
        ("has format", "a counter that this version"),
    ),
    MessageFamily(
        "An epoch is committed but not published",
        ("StateError", "StartError"),
        "The latest epoch is committed but not published. The state cannot change before the epoch is published.",
        "Start the pipeline once. If its target can never accept the epoch: [publish or skip an epoch that its "
        "target refuses](outbox.md).",
        (
            r"not published yet|not yet published",
            "waiting to be published",
            "could not be marked as skipped",
            "skipped rows go to",
            "name a writable directory",
        ),
    ),
    MessageFamily(
        "The epoch is no longer kept",
        STATE,
        "A state in files keeps at least the latest 8 commits. A state in Postgres keeps only the latest commit.",
        "Use one of the epochs that the message lists.",
        ("is not kept",),
    ),
    MessageFamily(
        "The name is already in use",
        ("StateError", "StartError"),
        "A state, a table or a fork with this name already exists. Nothing was changed.",
        "Choose another name, or do what the message says about the existing one.",
        (
            "already has a state",
            "but pipeline .* needs the name",
            r"both .* hold the state of a stage",
            "^fork: ",
            "holds an incomplete fork",
        ),
    ),
    MessageFamily(
        "The state and its target do not match",
        STATE,
        "The target holds another epoch than the state wrote last. The state is a restored copy, a copy of the state "
        "was continued, or the target was emptied or restored. A start would lose or duplicate rows.",
        "Choose one of the options in the message: [back up and restore the state](state/restore.md).",
        ("the state and its targets do not match",),
    ),
    MessageFamily(
        "The state is missing, but its target is not",
        STATE,
        "The target holds results of this pipeline, but its state does not exist. The directory, bucket or table of "
        "the state was removed or emptied, or `[state_store]` names another location.",
        "Restore the state, or start over with `--rebuild`. The new results are exact if the sources still hold all "
        "input.",
        ("the state was removed or emptied",),
    ),
    MessageFamily(
        "The pipeline may have been renamed",
        STATE,
        "The pipeline has no state under its name, and another pipeline writes to the same target. Starting over "
        "would write all rows a second time.",
        'Add `formerly = "<old name>"` to continue with its state, or start once with `--keep-output`: [rename a '
        "pipeline](state/rename.md#rename-a-pipeline).",
        ("Was the pipeline renamed", "which is stored under the name of the pipeline"),
    ),
    MessageFamily(
        "The state is damaged",
        STATE,
        "A file, a table or a record of the state is missing, or its content is wrong. Nothing was changed: a runner "
        "does not continue from a damaged state.",
        "Restore the file, table or record that the message names from a backup. `slackwater state verify` checks the "
        "whole state; [a start with an empty state](state/start-over.md) reads the sources again.",
        (
            "damaged",
            "is missing",
            "restore (it|them|both|that|the manifests)",
            "belongs to another state",
            "is not a file",
        ),
    ),
    MessageFamily(
        "The object store cannot be used",
        ("StateError", "StartError", "EpochError"),
        "The bucket of the state does not exist, denies access, or could not be reached for a minute. Committed "
        "epochs are safe. If the response to a commit was lost, the next start finds the commit.",
        "Do what the message says, and start again: [keep the state in an object store](state/object-store.md).",
        (
            "there is no bucket",
            "no credentials were found",
            "access was denied",
            "check the URL and its options",
            "was refused repeatedly",
            "check that the store can be reached",
            "state files cannot be cached",
            "the cache of state files",
        ),
    ),
    MessageFamily(
        "A table of the state was changed",
        STATE,
        "A table of a state in Postgres has other rows, columns or values than the commits wrote, so another program "
        "changed the table. A run would give wrong results.",
        "Restore the database from a backup, check what is intact with `slackwater state verify`, or start over with "
        "`--rebuild`.",
        ("was changed outside Slackwater", "state could not be read: "),
    ),
    MessageFamily(
        "The state store cannot be used",
        STATE,
        "The directory or the database of the state could not be read or written.",
        "The message quotes the cause, such as disk space, permissions or a connection. Fix the cause, and try "
        "again. Committed epochs are safe.",
    ),
)
