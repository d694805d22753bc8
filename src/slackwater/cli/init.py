"""`init`: writes a first config from options, prompts and a sample of the data. The config passes `check`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from slackwater.cli.output import program_command
from slackwater.config import static_sql_check, toml
from slackwater.config.error_text import format_value, suggest_or_list_words
from slackwater.config.pipeline import LONGEST_NAME
from slackwater.core.humanize import format_ms, plural
from slackwater.errors import ConfigError, StartError, Topic
from slackwater.scaffold import config_proposals, config_rendering
from slackwater.scaffold.config_proposals import TimeColumnCandidate, measure_out_of_orderness
from slackwater.scaffold.sample import Sample, abbreviate_value, read_sample

_SOURCES = ("files", "kafka")
_MOST_KEYS = 8  # maximum number of key columns to try


@dataclass(frozen=True)
class InitOptions:
    """The options of `slackwater init`. None means that an option was not specified."""

    file: Path
    source: str | None = None
    kind: str | None = None
    samples: tuple[Path, ...] = ()
    keys: tuple[str, ...] = ()
    time: str | None = None
    topics: tuple[str, ...] = ()
    brokers: str = "localhost:9092"
    name: str | None = None
    force: bool = False
    test: bool = True  # write a test next to the config if there is a sample


def write_first_config(options: InitOptions) -> None:
    """Write a config and, if there is a sample, a test. Raises StartError for wrong options or unwritable files."""
    file = options.file
    if not file.parent.is_dir():
        raise StartError(f"{file}: the directory {file.parent} does not exist; create it", Topic.FILE_NOT_WRITABLE)
    if file.is_dir():
        raise StartError(f"{file}: is a directory; expected the name of a file to write", Topic.FILE_NOT_WRITABLE)
    if file.exists() and not options.force:
        raise StartError(
            f"{file}: already exists; name another file, or overwrite it with --force", Topic.FILE_NOT_WRITABLE
        )
    options = _prompt_options(options) if sys.stdin is not None and sys.stdin.isatty() else options
    source, kind = (
        _check_choice("--source", options.source or "files", _SOURCES),
        _check_choice("--kind", options.kind or "session", config_rendering.KINDS),
    )
    samples = [read_sample(path) for path in options.samples]
    sample_count = 2 if kind == "join" else 1
    if len(samples) > sample_count or (samples and len(samples) < sample_count):
        reason = "a join has two sides" if kind == "join" else f"a {kind} window reads one source"
        raise StartError(
            f"--sample: found {plural(len(samples), 'sample')}, expected {sample_count}, because {reason}",
            Topic.INIT_SAMPLE,
        )
    for sample in samples:
        if source == "kafka" and sample.format != "json":
            raise StartError(
                f"--sample: {sample.path} is {sample.format}; expected JSON lines, because the records of a topic are read as JSON",
                Topic.INIT_SAMPLE,
            )
    options = replace(options, source=source, kind=kind)
    content, notes = _join_config(options, samples) if kind == "join" else _window_config(options, samples)
    try:
        with file.open("w" if options.force else "x", encoding="utf-8") as out:
            out.write(content)
    except OSError as error:
        raise StartError(
            f"{file}: cannot be written ({error.strerror}); choose another path", Topic.FILE_NOT_WRITABLE
        ) from None
    for line in notes:
        print(line)
    print(f"{file}: written, with a comment on each choice")
    from slackwater.cli.check import check_file

    check_file(file)
    if samples and options.test:
        from slackwater.cli.init_tests import write_test

        for line in write_test(file, toml.load(file), samples, options.force):
            print(line)
        print(f"next: {program_command()} test {file}")
    print(
        f"{'then' if samples and options.test else 'next'}: {program_command()} run {file}"
        + ("" if source == "kafka" else " --available-now --flush")
        + f", then {program_command()} show {file}"
    )


def _check_choice(flag: str, choice: str, choices: Sequence[str]) -> str:
    if choice not in choices:
        raise StartError(f"{flag}: found {format_value(choice)}{suggest_or_list_words(choice, choices)}", Topic.VALUE)
    return choice


def _prompt_options(options: InitOptions) -> InitOptions:
    """Prompt for the options that are None, and return all options. An empty answer selects the default."""
    import typer

    if options.source is None:
        options = replace(options, source=typer.prompt("Where are the rows: files or kafka?", default="files"))
    if options.kind is None:
        options = replace(
            options, kind=typer.prompt("Window or join: session, tumbling, hopping or join?", default="session")
        )
    if not options.samples:
        paths = []
        for side in ("left", "right") if options.kind == "join" else ("",):
            prompt = f"A sample of the {side} side" if side else "A sample of the data"
            answer = typer.prompt(
                f"{prompt}: a file or directory of JSON lines, CSV or Parquet (empty: none)",
                default="",
                show_default=False,
            )
            if not answer:
                break
            paths.append(Path(answer))
        options = replace(options, samples=tuple(paths))
    return options


def _pipeline_name(options: InitOptions) -> str:
    stem = options.name or re.sub(r"[^A-Za-z0-9._-]+", "-", options.file.stem).strip("-._") or "pipeline"
    return stem if options.name else stem[:LONGEST_NAME]


def _label(sample: Sample, number: int) -> str:
    return sample.path.name.split(".")[0] or f"source-{number}"


def _event_time(options: InitOptions, sample: Sample) -> TimeColumnCandidate | None:
    """Return the event-time column of a sample: the one that --time names, or else the most likely one.

    Return None only for Kafka, whose records have a timestamp. Raises StartError if no suitable column exists.
    """
    columns = config_proposals.propose_time_columns(sample)
    if options.time is None:
        if columns or options.source == "kafka":
            return columns[0] if columns else None
        raise StartError(
            f"--sample: {sample.path}: none of the columns ({', '.join(list(sample.columns)[:8])}) contains times"
            f"{_wrong_time_text(sample)}; expected text such as 2024-03-01T09:00:00Z, or a number of seconds, ms, us or ns since 1970; name the column with --time",
            Topic.INIT_SAMPLE,
        )
    names = (options.time, f"CAST({options.time} AS TIMESTAMP)")
    column = next((t for t in columns if t.name in names), None)
    if column is not None:
        return column
    if options.time not in sample.columns:
        raise StartError(
            f"--time: {format_value(options.time)} is not a column of {sample.path}{suggest_or_list_words(options.time, sample.columns)}",
            Topic.INIT_SAMPLE,
        )
    raise StartError(
        f"--time: column {format_value(options.time)} of {sample.path} does not contain times"
        f"{_wrong_time_text(sample, options.time)}; "
        "expected text such as 2024-03-01T09:00:00Z, or a number of seconds, ms, us or ns since 1970",
        Topic.INIT_SAMPLE,
    )


def _wrong_time_text(sample: Sample, name: str | None = None) -> str:
    """Describe the first value that is not a time, for an error message.

    `name`: the column to search; None selects the column that looks most like a time.
    """
    example = config_proposals.find_closest_time_column(sample, name)
    if example is None:
        return ""
    column, row, value = example
    return f": found {abbreviate_value(value)} in {format_value(column)}, {sample.row_location(row)}"


def _key_sets(options: InitOptions, sample: Sample, time: TimeColumnCandidate | None) -> list[list[str]]:
    """Return the keys to try, the most likely first. Raises StartError if a column in --key does not exist."""
    for key in options.keys:
        if key not in sample.columns:
            raise StartError(
                f"--key: {format_value(key)} is not a column of {sample.path}{suggest_or_list_words(key, sample.columns)}",
                Topic.INIT_SAMPLE,
            )
    if options.keys:
        return [list(options.keys)]
    return [[key.name] for key in config_proposals.propose_key_columns(sample, time)[:_MOST_KEYS]]


def _first_valid(contents: Sequence[str]) -> str:
    """Return the first valid config. Raises StartError with the first problem if no config is valid."""
    first: list[str] = []
    for content in contents:
        try:
            pipeline = toml.loads(content, "the config")
            problems = static_sql_check.check_sql(pipeline).problems
        except ConfigError as error:
            problems = list(error.problems)
        if not problems:
            return content
        first = first or problems
    problem = first[0].removeprefix("the config: ")
    raise StartError(f"found no valid config for the sample: {problem}", Topic.INIT_SAMPLE)


def _bad_rows_text(sides: Sequence[tuple[Sample, TimeColumnCandidate | None]]) -> str:
    bad = sum(sample.bad + (0 if time is None else time.missing) for sample, time in sides)
    return f"{plural(bad, 'row')} of the sample {'is' if bad == 1 else 'are'} bad" if bad else ""


def _window_config(options: InitOptions, samples: Sequence[Sample]) -> tuple[str, list[str]]:
    kafka, kind, name = options.source == "kafka", options.kind or "session", _pipeline_name(options)
    topic = (options.topics or ("events",))[0] if kafka else None
    home = options.file.parent
    if not samples:
        columns = {"user_id": "STRING", "amount": "DOUBLE", **({} if kafka else {"ts": "TIMESTAMP"})}
        side = config_rendering.DraftSide(
            "events",
            topic or "data/events/*.jsonl",
            "json",
            columns,
            {},
            None if kafka else "ts",
            None,
            options.keys or ("user_id",),
        )
        if options.time:
            side = replace(side, time=options.time, columns={**columns, options.time: "TIMESTAMP"})
        side = replace(
            side,
            columns={**dict.fromkeys(side.keys, "STRING"), **side.columns},
            notes=("an example: replace it with the columns of your rows",),
        )
        draft = config_rendering.ConfigDraft(
            name, kind, kafka, options.brokers, 10_000, config_rendering.lateness_note(None), measure="amount"
        )
        return _first_valid([config_rendering.format_config(draft, [side])]), []
    (sample,) = samples
    time = _event_time(options, sample)
    sample = config_proposals.declare_event_time(sample, time)
    disorder = measure_out_of_orderness(time.times_us) if time is not None else None
    key_names = [key.name for key in config_proposals.propose_key_columns(sample, time)]
    sets = _key_sets(options, sample, time) or ([] if kind == "session" else [[]])
    if not sets:
        raise StartError(
            f"--sample: {sample.path}: none of the columns ({', '.join(list(sample.columns)[:8])}) is suitable as "
            "a session key; name one with --key",
            Topic.INIT_SAMPLE,
        )
    length = 300_000
    if time is not None and len(time.times_us) > 1:
        span_us = max(time.times_us) - min(time.times_us)
        length = next((ms for ms, most in ((60_000, 7200), (300_000, 86_400)) if span_us < most * 1_000_000), 3_600_000)
    contents = []
    for keys, measured in product(sets, (True, False)):
        measure = (
            config_proposals.propose_measure_column(sample, *keys, time.name if time else "") if measured else None
        )
        draft = config_rendering.ConfigDraft(
            name=name,
            kind=kind,
            kafka=kafka,
            brokers=options.brokers,
            lateness_ms=10_000 if disorder is None else disorder.lateness_ms,
            lateness_note=config_rendering.lateness_note(disorder),
            keeps_late=config_rendering.describe_late_rows(disorder),
            length_ms=length,
            measure=measure,
            other_keys=tuple(k for k in key_names if k not in keys)[:3],
            drops_bad=_bad_rows_text([(sample, time)]),
        )
        contents.append(
            config_rendering.format_config(
                draft, [config_rendering.draft_side(sample, home, _label(sample, 1), time, keys, topic)]
            )
        )
    content = _first_valid(contents)
    return content, [*config_rendering.describe_sample(sample, time, disorder), *_choice_lines(content)]


def _choice_lines(content: str) -> list[str]:
    """Return lines that show the chosen key and window length, which the sample alone does not determine."""
    window = toml.loads(content, "the config").target_stage.transform.window
    assert window is not None
    keys = ", ".join(window.group_by) or "none, all rows are in one window"
    length = f"gap {format_ms(int(window.gap_ms))}" if window.gap_ms is not None else ""
    if window.duration_ms is not None:
        length = f"duration {format_ms(window.duration_ms)}"
    return [f"  key: {keys} (--key)", f"  {window.kind} windows: {length}, which is a guess; change it as needed"]


def _join_config(options: InitOptions, samples: Sequence[Sample]) -> tuple[str, list[str]]:
    kafka, name, home = options.source == "kafka", _pipeline_name(options), options.file.parent
    topics = (*options.topics, *("orders", "payments")[len(options.topics) :])
    if not samples:
        key = options.keys or ("order_id",)
        time = options.time or (None if kafka else "ts")
        columns = {**dict.fromkeys(key, "STRING"), "amount": "DOUBLE", **({time: "TIMESTAMP"} if time else {})}
        note = ("an example: replace it with the columns of your rows",)
        sides = [
            config_rendering.DraftSide(
                side, topics[i] if kafka else f"data/{side}/*.jsonl", "json", columns, {}, time, None, key, note
            )
            for i, side in enumerate(("orders", "payments"))
        ]
        draft = config_rendering.ConfigDraft(
            name, "join", kafka, options.brokers, 10_000, config_rendering.lateness_note(None)
        )
        return _first_valid([config_rendering.format_config(draft, sides)]), []
    left_sample, right_sample = samples
    times = _shared_event_time(options, left_sample, right_sample)
    disorders = [None if t is None else measure_out_of_orderness(t.times_us) for t in times]
    worst = max((s for s in disorders if s is not None), key=lambda s: s.lateness_ms, default=None)
    left_sample, right_sample = map(config_proposals.declare_event_time, (left_sample, right_sample), times)
    labels = [_label(left_sample, 1), _label(right_sample, 2)]
    if labels[0] == labels[1]:
        labels = [f"{labels[0]}_left", f"{labels[1]}_right"]
    draft = config_rendering.ConfigDraft(
        name=name,
        kind="join",
        kafka=kafka,
        brokers=options.brokers,
        lateness_ms=10_000 if worst is None else worst.lateness_ms,
        lateness_note=config_rendering.lateness_note(worst),
        keeps_late=next((late for s in disorders if (late := config_rendering.describe_late_rows(s))), ""),
        drops_bad=_bad_rows_text([(left_sample, times[0]), (right_sample, times[1])]),
    )
    contents = []
    for lefts, rights in _key_pairs(options, left_sample, right_sample, times):
        side_specs = [(left_sample, labels[0], times[0], lefts), (right_sample, labels[1], times[1], rights)]
        sides = [
            config_rendering.draft_side(sample, home, label, time, keys, topics[i] if kafka else None)
            for i, (sample, label, time, keys) in enumerate(side_specs)
        ]
        contents.append(config_rendering.format_config(draft, sides))
    if not contents:
        raise StartError(
            f"--sample: {left_sample.path} and {right_sample.path} have no columns that can be join keys; name one with --key",
            Topic.INIT_SAMPLE,
        )
    pairs = zip((left_sample, right_sample), times, disorders, strict=True)
    return _first_valid(contents), [line for pair in pairs for line in config_rendering.describe_sample(*pair)]


def _shared_event_time(
    options: InitOptions, first: Sample, second: Sample
) -> tuple[TimeColumnCandidate | None, TimeColumnCandidate | None]:
    """Return the event-time columns of both sides of a join. Raises StartError if they differ in name or unit."""
    if options.time is not None:
        pair = _event_time(options, first), _event_time(options, second)
    else:
        by_name = {(t.name, t.unit): t for t in config_proposals.propose_time_columns(second)}
        both = [t for t in config_proposals.propose_time_columns(first) if (t.name, t.unit) in by_name]
        pair = (
            (both[0], by_name[both[0].name, both[0].unit])
            if both
            else (_event_time(options, first), _event_time(options, second))
        )
    one, other = pair
    if (one is None) != (other is None) or (
        one is not None and other is not None and (one.name, one.unit) != (other.name, other.unit)
    ):
        names = " and ".join(format_value(t.name) + (f" in {t.unit}" if t.unit else "") if t else "none" for t in pair)
        raise StartError(
            f"--sample: the event-time columns of the two sides are {names}; in a join, "
            "both columns must have the same name and unit; change one of them",
            Topic.INIT_SAMPLE,
        )
    return pair


def _key_pairs(
    options: InitOptions,
    first: Sample,
    second: Sample,
    times: tuple[TimeColumnCandidate | None, TimeColumnCandidate | None],
) -> list[tuple[list[str], list[str]]]:
    """Return the join keys to try, as pairs (left, right) of equal types. Pairs with equal names come first."""
    lefts, rights = _key_sets(options, first, times[0]), _key_sets(options, second, times[1])
    if options.keys:
        return [(lefts[0], rights[0])]
    pairs = [(a, b) for a in lefts for b in rights if first.columns[a[0]] == second.columns[b[0]]]
    return sorted(pairs, key=lambda pair: pair[0] != pair[1])
