"""Messages of commands that query or change a pipeline."""

from __future__ import annotations

from collections.abc import Sequence

from slackwater.messages.family import START, MessageFamily

FAMILIES: Sequence[MessageFamily] = (
    MessageFamily(
        "A join has no windows",
        START,
        "The command is about windows, their keys or corrections. The pipeline is a join, whose rows are final, or "
        "only SQL, which has no state.",
        "`slackwater explain FILE` and `slackwater why FILE` show what a join keeps and for how long: "
        "[joins](joins.md).",
        (
            "rows of a join",
            "the state has rows of",
            "have no window",
            "no rows are waiting",
            "has no late rows, so",
            "this is a join",
            "describes a join",
            "found a join",
            "has no windows, so",
            "expected session windows",
            "a join has one",
        ),
    ),
    MessageFamily(
        "Dead letters cannot be replayed",
        START,
        "The chosen dead letters cannot be applied to this target or with this config. Nothing was changed.",
        "Select other dead letters with `--reason` and `--epoch`: [what can be replayed](how-replay.md).",
        (
            "letters",
            r"\[dead_letter\]",
            "nothing was replayed",
            "late rows correct windows",
            "stage cannot be replayed",
        ),
    ),
    MessageFamily(
        "The backfill is not possible",
        START,
        "The range, the source or the target does not allow a backfill. Nothing was written.",
        "See [fill a target from history](backfill.md).",
        (
            "backfill",
            "is not before --to",
            "keeps no history",
            "which history does not record",
            "name another target with --into",
        ),
    ),
    MessageFamily(
        "The DataFrame is not a batch",
        START,
        "`sw.batch` and `sw.batch_join` accept batch DataFrames, not streaming DataFrames.",
        "Run a streaming DataFrame as a pipeline: [compute windows over a batch](batch.md).",
        ("streaming DataFrame; expected", "Spark Connect"),
    ),
    MessageFamily(
        "The condition cannot be evaluated",
        START,
        "The condition in `--where` (`where=`) is not supported on a state, or takes too long.",
        "See [query the state](state/query.md) for the supported conditions.",
        ("^where: ",),
    ),
    MessageFamily(
        "A file cannot be written",
        START,
        "The file or directory that a command writes already exists, its path is not usable, or the system denies access.",
        "Choose another path. The message quotes the system.",
        (
            "cannot be written",
            "already exists",
            "its folder does not exist",
            "is a directory",
            "the directory .* does not exist",
            "is not empty",
            "found the suffix",
        ),
    ),
    MessageFamily(
        "An output cannot be read",
        START,
        "`show`, `diff`, `dlq` or `export` read the rows of a target. This target cannot be read, or does not store "
        "rows.",
        "The message names the target and quotes the system.",
        (
            "cannot be read",
            "cannot be shown yet",
            "no such (file|table)",
            "expected files of one kind",
            "the URL does not name a table",
            "its target is",
            "cannot be looked at",
            "identif(y a row|ies rows)",
            "there is no column",
            "expected a table of dead letters",
        ),
    ),
    MessageFamily(
        "The page or the server cannot start",
        START,
        "`ui`, `serve` or the metrics server cannot listen at this address, or its options are not accepted.",
        "See [what it costs, and who may see it](ui.md#what-it-costs-and-who-may-see-it).",
        ("--token", "--host", "cannot be served", "--save", "one FILE", "describe pipelines with the same name"),
    ),
    MessageFamily(
        "The report to another system is not configured",
        START,
        "`--otel` or `--openlineage` is set, but its configuration names no destination or cannot be read.",
        "See [monitor a pipeline](monitoring.md).",
        ("OPENLINEAGE|--openlineage", "milliseconds above 0"),
    ),
    MessageFamily(
        "A value is not valid",
        START,
        "A key, a time, an option or a number of a command does not have the expected form. Nothing was changed.",
        "Correct the value: the message says which form is expected.",
        (
            "expected",
            "is now called",
            "is not a key",
            "no stage has windows with these keys",
            "is not a stage of the state",
            "--target",
            "missing",
            "unknown option",
            r"\bfound\b",
            r"results\(\) needs",
            "is empty",
            "not a known parameter",
            "query string",
            "omit ",
        ),
    ),
    MessageFamily(
        "The pipeline cannot start",
        START,
        "The pipeline does not fit the data, the SQL or the state. There is one line per problem.",
        "Correct what the message names. Nothing was read or changed.",
    ),
)
