"""Messages about the runner and the state of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence

from slackwater.messages.family import STATE, MessageFamily

FAMILIES: Sequence[MessageFamily] = (
    MessageFamily(
        "Another runner holds the pipeline",
        ("LockHeldError",),
        "One runner per pipeline: the one that is named, by process and machine, has its lock. The lock goes with its process; in an "
        "object store it is a lease, which a process of another machine that is gone keeps for 35 seconds at most.",
        "Stop that one first. Looking (`why`, `show`, `state`, `ui`) needs no lock.",
    ),
    MessageFamily(
        "Another runner went on",
        ("FencedError",),
        "The store holds a commit that this runner did not make, so it stops before it writes anything. That happens where a "
        "runner was cut off (a pause, a lost connection) and another took over.",
        "Nothing: the other one goes on, and nothing is doubled or lost. If none should be there, find out who started it.",
    ),
    MessageFamily(
        "There is no state to look into",
        ("StateError", "StartError"),
        "The question is about a state, and there is none yet at that place, or not of this pipeline, or only in a runner's memory.",
        "Run the pipeline once; or name the place that `[state_store]` names, and the pipeline (`--pipeline`) where several share it.",
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
        "What is in the state does not mean what the config means now: another window, other keys, other columns. It was not touched.",
        "`slackwater plan FILE` compares both, difference by difference. Change the config back, or start over with `--rebuild`, "
        "which puts the state aside: [what may change](state/change.md).",
        (
            "was written for another",
            "does not describe its window",
            "does not say which",
            "only windows can be looked into",
            "its columns changed since",
            "the config has changed since",
            "was rewritten for another way to emit",
        ),
    ),
    MessageFamily(
        "The state was written by another version",
        STATE,
        "The state has a format or a part that this version does not know.",
        "Install the version that wrote it, or a newer one: [upgrading](upgrade.md).",
        ("has format", "a counter that this version"),
    ),
    MessageFamily(
        "An epoch is committed and not published",
        ("StateError", "StartError"),
        "What is committed is published before anything else happens to the state, and that is still to come.",
        "Start the pipeline once. Where its target never takes the epoch: "
        "[publish or skip an epoch that its target refuses](outbox.md).",
        (
            r"not published yet|not yet published",
            "waits? to be published",
            "is set aside in",
            "rows are set aside",
            "name a directory that can be written",
        ),
    ),
    MessageFamily(
        "That epoch is not kept",
        STATE,
        "Files keep the latest commits (8 or more), Postgres the latest alone.",
        "Ask one of the epochs that the line names.",
        ("is not kept",),
    ),
    MessageFamily(
        "The name or the place is taken",
        ("StateError", "StartError"),
        "A state, a table or a fork of another pipeline is there already. Nothing was changed.",
        "Choose another name; or do what the line says about the one that is there.",
        (
            "has a state already",
            "and pipeline .* needs the name",
            r"both .* hold the state of a stage",
            "^fork: ",
            "holds a fork that was cut off",
        ),
    ),
    MessageFamily(
        "The state and its target do not belong together",
        STATE,
        "The target holds another epoch than the state wrote last: the state is a restored copy, a copy of it went on, or the target "
        "was emptied or restored. Going on would lose or double rows.",
        "Choose one of the ways that the line names: [back up and restore the state](state/restore.md).",
        ("the state and what it wrote do not fit",),
    ),
    MessageFamily(
        "The state is gone, and its target is not",
        STATE,
        "The target holds results of this pipeline, and its state does not exist: the directory, bucket or table of "
        "the state was removed or emptied, or `[state_store]` names another place.",
        "Restore the state, or start over with `--rebuild`: exact as far as the sources still hold the input.",
        ("the state was removed or emptied",),
    ),
    MessageFamily(
        "The pipeline may have been renamed",
        STATE,
        "There is no state under the name of the config, and another pipeline writes to the same target. Starting over would write "
        "everything a second time.",
        'Add `formerly = "<old name>"` to go on with its state, or start once with `--keep-output`: [rename a pipeline](state/rename.md#rename-a-pipeline).',
        ("Was it renamed", "which belongs to the name of the pipeline"),
    ),
    MessageFamily(
        "The state is damaged",
        STATE,
        "A file, a table or a record of the state is missing, or is not what was written. Nothing was changed: a state that is "
        "not sound is not gone on with.",
        "Restore what the line names from a copy. `slackwater state verify` says of all of it whether it is sound; "
        "[a start with an empty state](state/start-over.md) reads the sources again.",
        (
            "damaged",
            "is missing",
            "restore (it|them|both|that|the manifests)",
            "is of another state",
            "is not a file",
        ),
    ),
    MessageFamily(
        "The object store cannot be used",
        ("StateError", "StartError", "EpochError"),
        "The bucket that holds the state does not exist, does not let this process in, or could not be reached for a minute. What was "
        "committed stays, and a commit whose answer was lost is found by the next start.",
        "Do what the line says, and start again: [in an object store](state/object-store.md).",
        (
            "there is no bucket",
            "no credentials were found",
            "access was denied",
            "check the URL, and its options",
            "was refused again and again",
            "see that the store can be reached",
            "copies of state files cannot be kept",
            "the cache of state files",
        ),
    ),
    MessageFamily(
        "A table of the state was changed",
        STATE,
        "A table of a state in Postgres has other rows, columns or values than the commits wrote: somebody else changed it. Going on would "
        "give wrong results.",
        "Restore the database from a backup, look at what is left with `slackwater state verify`, or start over with `--rebuild`.",
        ("was changed by somebody else", "state could not be read: "),
    ),
    MessageFamily(
        "The state store cannot be used",
        STATE,
        "The directory or the database that holds the state did not let itself be read or written.",
        "The line has the system's own words: room, rights, a connection. Mend that and repeat; what was committed stays.",
    ),
)
