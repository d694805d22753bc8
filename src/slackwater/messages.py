"""What messages mean and what to do about them, by families. `docs/messages.md` is made of this and of the sources.

A message belongs to the first family of its class (or of the class above it) of which a pattern is in its text; a family
without patterns takes what the others leave. So a new message needs an entry of its own only where none says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

PAGE = "docs/messages.md"
WARNING = "warning"  # in the place of a class: lines of the log


@dataclass(frozen=True)
class Family:
    """Messages that mean the same. `of`: names of error classes, or `WARNING`; `patterns`: of their texts, any of them."""

    title: str
    of: tuple[str, ...]
    means: str
    do: str
    patterns: tuple[str, ...] = ()

    @property
    def anchor(self) -> str:
        """Of its heading, as code hosts and the site make it."""
        return re.sub(r"[^\w\- ]", "", self.title.lower()).replace(" ", "-")

    def takes(self, text: str) -> bool:
        return not self.patterns or any(re.search(p, text) for p in self.patterns)


_S = ("StartError",)
_STATE = ("StateError",)

FAMILIES: Sequence[Family] = (
    # -- the config ------------------------------------------------------------------------------------------------
    Family(
        "The config is wrong",
        ("ConfigError",),
        "The description of a pipeline has mistakes, one line each: the pipeline, the key, what was found, what was expected. "
        "Nothing was started. All mistakes are told at once, but for those that others hide.",
        "Correct the key that the line names. `slackwater check FILE` says below its lines where the keys are "
        "[documented](configuration.md); [an editor](configuration.md#in-an-editor) marks most mistakes while you type.",
    ),
    Family(
        "A test cannot be run as it is",
        _S,
        "What a test of a pipeline gives does not fit the pipeline: a column that no schema has, a value of another type, or SQL, an "
        "event time or records that only Spark can read while the test has no session.",
        "Correct the rows or the schema of the test; in Python give `session=`, a Spark session: [testing](testing.md).",
        (
            "a given row has",
            r"declares no schema; give schema=",
            "give session=",
            "tests cannot write Avro",
            "alone needs schema=",
        ),
    ),
    # -- one runner ------------------------------------------------------------------------------------------------
    Family(
        "Another runner holds the pipeline",
        ("LockHeldError",),
        "One runner per pipeline: the one that is named, by process and machine, has its lock. The lock goes with its process.",
        "Stop that one first. Looking (`why`, `show`, `state`, `ui`) needs no lock.",
    ),
    Family(
        "Another runner went on",
        ("FencedError",),
        "The store holds a commit that this runner did not make, so it stops before it writes anything. That happens where a "
        "runner was cut off (a pause, a lost connection) and another took over.",
        "Nothing: the other one goes on, and nothing is doubled or lost. If none should be there, find out who started it.",
    ),
    # -- the state -------------------------------------------------------------------------------------------------
    Family(
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
    Family(
        "The state was written for another config",
        ("StateError", "StartError"),
        "What is in the state does not mean what the config means now: another window, other keys, other columns. It was not touched.",
        "`slackwater plan FILE` compares both, difference by difference. Change the config back, or start over with `--rebuild`, "
        "which puts the state aside: [what may change](state.md#changing-a-pipeline).",
        (
            "was written for another",
            "does not describe its window",
            "does not tell which join",
            "only windows can be looked into",
            "its columns changed since",
            "the config has changed since",
            "was rewritten for another way to emit",
        ),
    ),
    Family(
        "The state was written by another version",
        _STATE,
        "The state has a format or a part that this version does not know.",
        "Install the version that wrote it, or a newer one: [upgrading](upgrade.md).",
        ("has format", "a counter that this version"),
    ),
    Family(
        "An epoch is committed and not published",
        ("StateError", "StartError"),
        "What is committed is published before anything else happens to the state, and that is still to come.",
        "Start the pipeline once. Where its target never takes the epoch: "
        "[an epoch that its target does not take](operations.md#an-epoch-that-its-target-does-not-take).",
        (
            r"not published yet|not yet published",
            "waits? to be published",
            "is set aside in",
            "rows are set aside",
            "name a directory that can be written",
        ),
    ),
    Family(
        "That epoch is not kept",
        _STATE,
        "Files keep the latest commits (8 or more), Postgres the latest alone.",
        "Ask one of the epochs that the line names.",
        ("is not kept",),
    ),
    Family(
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
    Family(
        "The state is damaged",
        _STATE,
        "A file, a table or a record of the state is missing, or is not what was written. Nothing was changed: a state that is "
        "not sound is not gone on with.",
        "Restore what the line names from a copy. `slackwater state verify` says of all of it whether it is sound; "
        "[starting over](state.md#starting-over) reads the sources again.",
        (
            "damaged",
            "is missing",
            "restore (it|them|both|that|the manifests)",
            "is of another state",
            "is no file",
        ),
    ),
    Family(
        "The state store cannot be used",
        _STATE,
        "The directory or the database that holds the state did not let itself be read or written.",
        "The line has the system's own words: room, rights, a connection. Mend that and repeat; what was committed stays.",
    ),
    # -- sources, targets, services ----------------------------------------------------------------------------------
    Family(
        "`init` cannot use the sample",
        _S,
        "The file or directory of `--sample` is not there, holds no rows, or has nothing that can be a time or a key.",
        "Name another sample, or the columns with `--time` and `--key`: [the first day](first-day.md#what-it-takes-from-a-sample).",
        ("--sample", "--time: ", "--key: .* no column", "no config came of it"),
    ),
    Family(
        "Offsets that cannot be gone on at",
        _S,
        "Offsets that were given for a source are not of a form, a partition or a place that it has. Nothing was committed.",
        "See [other offsets](state.md#other-offsets).",
        (
            "--offsets",
            "expected an offset",
            "expected partitions",
            "has no partition",
            "does not read a topic",
            "found the partition",
            "the sources go on there already",
            "which have no order to go on at",
            "a broker is to be asked",
            "it was never read",
        ),
    ),
    Family(
        "A service cannot be reached",
        _S,
        "A broker, a database or a registry does not answer at the address of the config, or refuses who asks.",
        "Check address, name and password, and that it runs: `slackwater check FILE --connect` asks all of them. Nothing is lost, the next start goes on.",
        (
            "cannot be reached",
            "do(es)? not answer",
            "did not answer",
            "gave nothing for",
            "refused the",
            r"cannot be used \(.*brokers",
            "is not an address of a broker",
            "the url is not valid",
            "url holds a setting",
            "ended at once",
        ),
    ),
    Family(
        "The rights do not suffice",
        _S,
        "The service is there, and does not let this role do what is needed.",
        "Grant the role what the line names.",
        ("check the role's rights", "check who may read", "does not give queue"),
    ),
    Family(
        "Something is not installed",
        _S,
        "A package, a jar, Java or a server is not on this machine.",
        "Install what the line names; [what is fetched and from where](operations.md#before-it-runs).",
        (
            "pip install",
            "needs? the package",
            "needs Java",
            "apt-get install",
            "cannot be fetched from Maven",
            "has no Kafka connector",
        ),
    ),
    Family(
        "Spark does not start",
        _S,
        "Spark's process ended before it was up. Nothing was read.",
        "`java -version` must say 17 or later; the lines above it in the log are Spark's.",
        ("Spark did not start",),
    ),
    Family(
        "There is nothing to read",
        _S,
        "The topic, the queue, the directory or the file that a source or a lookup names is not there.",
        "Create it, or correct `query`. `slackwater check FILE --connect` looks for all of them.",
        ("there is no topic", "has no queue", "deleted queue", "expected the directory or files", "^lookup "),
    ),
    Family(
        "The schema of a source does not fit",
        _S,
        "No schema is declared and none can be inferred, or the declared one (DDL, or Avro) cannot be used.",
        "Declare `schema` of the source: [sources](sources.md).",
        ("no schema is declared", "not valid DDL", r"[Aa]vro schema", "avro_schema_file"),
    ),
    Family(
        "There is no usable event time",
        _S,
        "The column that `event_time_column` names is not there, has an unfit type, or the first rows hold no time in it. Such a "
        "pipeline would drop all of its rows, so it does not start.",
        "Correct `event_time_column` or `event_time_unit`: [event time](semantics.md#event-time).",
        ("usable event time", "event_time_column", "event_time_unit", "expected a timestamp, a date", "_event_ts"),
    ),
    Family(
        "The SQL or its columns do not fit",
        _S,
        "The SQL runs row by row over `source`, and what comes out of it must have the columns that keys, aggregations and the join name.",
        "The line names the column or the expression, and those that there are: [transform](configuration.md#transform).",
        (
            "must be row-wise",
            "^(?!.*(no column|not known here)).*; there are: ",
            "valid expression",
            "same columns from every source",
            "expected milliseconds, an interval",
            "hidden column",
            "under which late_data",
            '^aggregation "',
            "which Postgres does not give back",
        ),
    ),
    Family(
        "Only Spark's checkpoint knows where to go on",
        _S,
        "A source that cannot seek (a queue, a connector, a DataFrame) goes on by Spark's checkpoint alone, and that is lost, or was "
        "made for other sources. Reading from anywhere else would count rows twice or not at all.",
        "Restore the checkpoint, keep the sources as they were, or begin anew under another name: [seek](sources.md).",
        ("cannot seek", "Spark's checkpoint only"),
    ),
    Family(
        "The target does not fit the output",
        _S,
        "The table, topic or directory that is there has other columns or settings than what would be written, or cannot be opened.",
        "Alter it, or name one that is absent: it is made with the right columns.",
        (
            "does not fit the output",
            "other columns than",
            'mode "merge" needs',
            "cleanup.policy",
            r"^(Kafka )?topic|Kafka topic",
            "Avro does not take",
            "cannot be opened",
            "a name of .* bytes",
        ),
    ),
    Family(
        "The target holds what another state wrote",
        _S,
        "A state begins anew, and its target, which only adds rows, holds those of a former state; or paths of an earlier version "
        "began elsewhere. Going on would write rows twice, so somebody has to choose.",
        "`--put-aside-output` moves the former files away, `--keep-output` adds to them; the line names the command for paths.",
        ("the state that wrote", "relative paths begin", "could not be put aside"),
    ),
    # -- questions and commands -------------------------------------------------------------------------------------
    Family(
        "A join has no windows",
        _S,
        "The question is about windows, keys of windows or corrections, and the pipeline is a join, whose rows are final.",
        "`slackwater explain FILE` and `slackwater why FILE` say what a join keeps and for how long: [joins](joins.md).",
        (
            "rows of a join",
            "this is a join",
            "describes a join",
            "found a join",
            "the windows are .*, not sessions",
            "a join has one",
        ),
    ),
    Family(
        "Letters cannot be replayed",
        _S,
        "The dead letters that were chosen cannot be applied to this target or with this config. Nothing was changed.",
        "Choose others by `--reason` and `--epoch`; [what can be applied](late-data.md#applying-letters-slackwater-dlq-replay).",
        ("letters", r"\[dead_letter\]", "nothing was replayed", "late rows correct windows"),
    ),
    Family(
        "A backfill cannot be made so",
        _S,
        "The range, the source or the target of a backfill does not allow it. Nothing was written.",
        "See [backfill](state.md#backfill-the-same-pipeline-over-history).",
        (
            "backfill",
            "is not before --to",
            "keeps no history",
            "which history has none of",
            "name another place with --into",
        ),
    ),
    Family(
        "A batch cannot be made of this DataFrame",
        _S,
        "`sw.batch` takes batch DataFrames of a classic Spark session.",
        "Run a streaming DataFrame as a pipeline: [the same windows over a batch](state.md#the-same-windows-over-a-batch).",
        ("streaming DataFrame, expected", "Spark Connect"),
    ),
    Family(
        "A condition cannot be asked",
        _S,
        "What `--where` (`where=`) holds is not one of the conditions that may be asked of a state, or takes too long.",
        "See [looking](state.md#looking) for what it may hold.",
        ("^where: ",),
    ),
    Family(
        "A file cannot be written",
        _S,
        "The file or directory that a command was to write is there already, is no place for one, or the system refuses it.",
        "Name another path; the line has the system's own words.",
        (
            "cannot be written",
            "is there already",
            "its folder is not there",
            "is a directory",
            "there is no directory",
            "is not empty",
            "found the suffix",
        ),
    ),
    Family(
        "An output cannot be read",
        _S,
        "`show`, `diff`, `dlq` or `export` read what a target holds, and this one cannot be read, or keeps nothing.",
        "The line names the place and the system's own words.",
        (
            "cannot be read",
            "cannot be shown yet",
            "no such (file|table)",
            "expected files of one kind",
            "no table is named",
            "its target is",
            "cannot be looked at",
            "tells? rows apart",
            "there is no column",
            "expected a table of dead letters",
        ),
    ),
    Family(
        "The page or the server cannot be opened so",
        _S,
        "`ui`, `serve` or the metrics cannot listen as they were told to, or who asks may not.",
        "See [what it costs, and who may see it](ui.md#what-it-costs-and-who-may-see-it).",
        ("--token", "--host", "cannot be served", "--save", "one FILE", "describe pipelines of one name"),
    ),
    Family(
        "Other systems cannot be told",
        _S,
        "`--otel` or `--openlineage` were asked for, and their configuration does not say where to send to, or cannot be read.",
        "See [watching it](monitoring.md).",
        ("OPENLINEAGE|--openlineage", "expected milliseconds above 0"),
    ),
    Family(
        "A value that was given does not fit",
        _S,
        "A key, a time, an option or a number of a command or a question is not of the form that is expected. Nothing was changed.",
        "The line says what was found and what is expected.",
        (
            "expected",
            "is not a key",
            "--target",
            "missing",
            "unknown option",
            r"\bfound\b",
            "is empty",
            "not known here",
            "query string",
            "leave it out",
        ),
    ),
    Family(
        "The pipeline cannot start",
        _S,
        "The pipeline does not fit the data, the SQL or the state that are there: one line for each thing that does not.",
        "The line says what was found and what is expected. Nothing was read or changed.",
    ),
    # -- while it runs ----------------------------------------------------------------------------------------------
    Family(
        "Bad rows stop the pipeline",
        ("BadRowError",),
        "Rows could not be decoded, have no usable event time or gap, or cannot be held by the target. Nothing of the epoch was committed.",
        'Correct the input, or set `on_error = "drop"` (they are counted) or `"dlq"` (they are [kept](late-data.md), and can be applied later).',
    ),
    Family(
        "A bound of the state was reached",
        ("CapExceededError",),
        "`max_groups_per_window`, `max_rows_per_key` or a bound of an aggregation's values is exceeded. Nothing of the epoch was committed.",
        "Raise the bound if there is room (`slackwater state sizes FILE`), or let `on_state_cap` drop and count: [bounds](semantics.md#bounds). "
        "Find out whether a key has become too fine.",
    ),
    Family(
        "A result does not fit its type",
        ("ValueRangeError",),
        "A sum or an average outgrew the type of its column. Nothing of the epoch was committed.",
        'Set `on_overflow = "null"`, or cast the column to a wider type in the SQL: [aggregations](aggregations.md).',
    ),
    Family(
        "Too many open files",
        ("ExhaustedError",),
        "This process or this machine has no descriptor left. No file is damaged.",
        "Close what holds them, or allow more with `ulimit -n`.",
    ),
    Family(
        "The target did not take an epoch",
        ("PublishError",),
        "The epoch is committed, and writing it failed. The next start publishes it from the commit; nothing is lost, and a target that "
        "has it already ignores it.",
        "Remove the cause and start again. Where it cannot be removed: "
        "[an epoch that its target does not take](operations.md#an-epoch-that-its-target-does-not-take).",
    ),
    Family(
        "Spark's process is gone",
        ("SparkEndedError",),
        "It was killed, or ran out of memory. Nothing committed is lost.",
        'Start again. `[spark]` `"spark.driver.memory" = "4g"` gives it more memory, `max_files_per_trigger` and '
        "`max_offsets_per_trigger` make epochs smaller.",
    ),
    Family(
        "The input was not the same when it was read again",
        ("EpochError",),
        "An epoch that has letters reads its rows a second time, and the source gave others. Nothing was committed.",
        "Start again. A source that reads differently the second time cannot keep late rows as letters.",
        ("input was not the same",),
    ),
    Family(
        "Records are gone before they were read",
        ("EpochError",),
        "The source's retention was shorter than the pause, or the messages have expired.",
        'Keep them longer, or set `on_data_loss = "skip"` to count them as lost and go on: [sources](sources.md).',
        ("on_data_loss",),
    ),
    Family(
        "A file of Spark's checkpoint is damaged",
        ("EpochError",),
        "The checkpoint is only the plan of the next epoch, and that cannot be read.",
        "Delete the directory that the line names and start again; the state knows where to go on.",
        ("checkpoint (file|directory)",),
    ),
    Family(
        "Whether an epoch was committed is not known yet",
        ("EpochError",),
        "The connection to the database went away while it committed.",
        "Start again: the commit's id is looked up, and the epoch is repeated only if it is not there.",
        ("is unknown", "finds out whether"),
    ),
    Family(
        "The demo failed",
        ("EpochError",),
        "`slackwater demo-kafka` did not get the result that it knows.",
        "Look into the log that the line names.",
        ("^demo-kafka",),
    ),
    Family(
        "An epoch failed",
        ("EpochError",),
        "While an epoch ran, the SQL, the input, a service or the machine failed. Nothing of that epoch was committed, and nothing "
        "of it is visible.",
        "The line has the cause in its own words. Mend that and start again: the epoch is repeated.",
    ),
    # -- warnings ---------------------------------------------------------------------------------------------------
    Family(
        "A clock in the input may be wrong",
        (WARNING,),
        "A few rows are far ahead of the others. What such a row moves is the watermark, and all others are late behind it.",
        "Filter at the source, or set `max_jump_ms`: [far dates](semantics.md#watermarks).",
        ("newest event time", "jumps from", "far from now", "most rows come late"),
    ),
    Family(
        "Rows came late",
        (WARNING,),
        "Rows came after the watermark had closed their windows. They are counted, and `late_data` decides what becomes of them.",
        "Raise `lateness_ms`, or choose another policy: [late rows](late-data.md), [corrections](corrections.md).",
        (r"\(watermark", r"side \(\"…\"\) …$"),
    ),
    Family(
        "A commit was looked up or could not be noted",
        (WARNING,),
        "The connection to Postgres was lost around a commit; the runner found out what became of it and went on.",
        "Nothing, unless it comes often: look at the network and the database.",
        (
            "connection lost",
            "had (not )?been committed",
            "could not be noted",
            "the target refused epoch",
            "was set aside",
        ),
    ),
    Family(
        "Rows were left out",
        (WARNING,),
        "Bad rows, groups beyond a bound, rows of a join beyond `max_rows_per_key`, or records that were gone. Each is counted.",
        "The line says which, how many and where they were read.",
        ("refused", "wait for partners", "gone before", "are gone from Kafka", "^… …: …$"),
    ),
    Family(
        "Results came out as NULL",
        (WARNING,),
        'A result did not fit its type under `on_overflow = "null"`.',
        "Cast the column to a wider type in the SQL: [aggregations](aggregations.md).",
        ("fit the type of the column",),
    ),
    Family(
        "Delivery is at least once",
        (WARNING,),
        "After a crash the target may get an epoch a second time.",
        'For Kafka set `delivery = "exactly_once"`: [delivery](semantics.md#delivery).',
        ("^delivery to",),
    ),
    Family(
        "Other warnings",
        (WARNING,),
        "What the start or a run wants somebody to know: a file that changed after it was read, a name of the schema that is not in the "
        "data, a bound or a size that is unusual, a sender that failed.",
        "The line says what it is about; the pipeline goes on.",
    ),
)


def family(kinds: Sequence[str], text: str) -> Family | None:
    """Of a message: `kinds` are the names of its class and those above it, or `WARNING`."""
    for kind in kinds:
        for found in FAMILIES:
            if kind in found.of and found.takes(text):
                return found
    return None


def place(kinds: Sequence[str], text: str) -> str | None:
    """The page and heading about a message; None of a class that has none."""
    found = family(kinds, text)
    return None if found is None else f"{PAGE}#{found.anchor}"
