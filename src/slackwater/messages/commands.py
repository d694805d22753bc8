"""Messages of commands that query or change a pipeline."""

from __future__ import annotations

from collections.abc import Sequence

from slackwater.messages.family import START, MessageFamily

FAMILIES: Sequence[MessageFamily] = (
    MessageFamily(
        "A join has no windows",
        START,
        "The question is about windows, keys of windows or corrections, and the pipeline is a join, whose rows are "
        "final, or SQL alone, which keeps none.",
        "`slackwater explain FILE` and `slackwater why FILE` say what a join keeps and for how long: [joins](joins.md).",
        (
            "rows of a join",
            "have no window",
            "no row waits",
            "no row is late in a pipeline",
            "this is a join",
            "describes a join",
            "found a join",
            "the windows are .*, not sessions",
            "a join has one",
        ),
    ),
    MessageFamily(
        "Letters cannot be replayed",
        START,
        "The dead letters that were chosen cannot be applied to this target or with this config. Nothing was changed.",
        "Choose others by `--reason` and `--epoch`; [what can be applied](how-replay.md).",
        ("letters", r"\[dead_letter\]", "nothing was replayed", "late rows correct windows"),
    ),
    MessageFamily(
        "A backfill cannot be made so",
        START,
        "The range, the source or the target of a backfill does not allow it. Nothing was written.",
        "See [backfill](backfill.md).",
        (
            "backfill",
            "is not before --to",
            "keeps no history",
            "which history has none of",
            "name another place with --into",
        ),
    ),
    MessageFamily(
        "A batch cannot be made of this DataFrame",
        START,
        "`sw.batch` takes batch DataFrames of a classic Spark session.",
        "Run a streaming DataFrame as a pipeline: [compute windows over a batch](batch.md).",
        ("streaming DataFrame, expected", "Spark Connect"),
    ),
    MessageFamily(
        "A condition cannot be asked",
        START,
        "What `--where` (`where=`) holds is not one of the conditions that may be asked of a state, or takes too long.",
        "See [looking](state/query.md) for what it may hold.",
        ("^where: ",),
    ),
    MessageFamily(
        "A file cannot be written",
        START,
        "The file or directory that a command was to write already exists, cannot be written there, or the system refuses it.",
        "Name another path; the line has the system's own words.",
        (
            "cannot be written",
            "already exists",
            "its folder does not exist",
            "is a directory",
            "there is no directory",
            "is not empty",
            "found the suffix",
        ),
    ),
    MessageFamily(
        "An output cannot be read",
        START,
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
    MessageFamily(
        "The page or the server cannot be opened so",
        START,
        "`ui`, `serve` or the metrics cannot listen as they were told to, or who asks may not.",
        "See [what it costs, and who may see it](ui.md#what-it-costs-and-who-may-see-it).",
        ("--token", "--host", "cannot be served", "--save", "one FILE", "describe pipelines of one name"),
    ),
    MessageFamily(
        "Other systems cannot be told",
        START,
        "`--otel` or `--openlineage` were asked for, and their configuration does not say where to send to, or cannot be read.",
        "See [watching it](monitoring.md).",
        ("OPENLINEAGE|--openlineage", "expected milliseconds above 0"),
    ),
    MessageFamily(
        "A value that was given does not fit",
        START,
        "A key, a time, an option or a number of a command or a question is not of the form that is expected. Nothing was changed.",
        "The line says what was found and what is expected.",
        (
            "expected",
            "is now called",
            "is not a key",
            "no stage has windows with such keys",
            "is not a stage of the state",
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
    MessageFamily(
        "The pipeline cannot start",
        START,
        "The pipeline does not fit the data, the SQL or the state that are there: one line for each thing that does not.",
        "The line says what was found and what is expected. Nothing was read or changed.",
    ),
)
