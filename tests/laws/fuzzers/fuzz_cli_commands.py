"""Fuzz the options and arguments of every command with hostile values. An exit code above 2 is a defect.

A command that would start Spark or a server gets a missing file, so only its command line is checked.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import typer
from tests.laws.fuzzers import hostile_texts as words
from tests.laws.fuzzers.fuzz_state_records import prepare_two_epoch_state

from slackwater.cli.main import app, main

STARTS = {
    "run",
    "backfill",
    "prepare",
    "ui",
    "serve",
    "test",
    "init",
    "replay",
}  # with an existing file, these commands would start
ALONE = {"demo", "demo-kafka"}  # no file argument: `--rows` outside the valid range is refused before the start
VALUES = (
    *map(str, words.NUMBERS[4:-1]),
    *("-1", "0", "1", "1.5", "nan", "inf", "-inf", "1e400", "9" * 11, "9" * 20, "9" * 5000, "0x" + "f" * 5000),
    *(
        "",
        " ",
        "x",
        "k = '\udcff'",
        "\udcff",
        "--",
        "-",
        "a=b",
        "a=1,b=2",
        "=",
        "k = 'x' AND",
        "1 = 1 OR",
        "(" * 500,
        "\n",
    ),
    *("x" * 100_000, "/", "../..", "/dev/null", "${HOME}", "😀", "{}", "[1]", '{"a": {"0": 1}}', "earliest", "latest"),
    *("2024-01-01", "99999-01-01", "1970-01-01T00:00:00Z", "0001-01-01", "a:1", "a:earliest", "a=earliest", "b=99"),
)
CONFIG = """name = "law"
[connections.lake]
kind = "files"
[[sources]]
name = "a"
connection = "lake"
query = "in/*.jsonl"
format = "json"
schema = "u STRING, id BIGINT, page STRING, ts TIMESTAMP"
[transform.window]
kind = "session"
gap_ms = 40
max_session_duration_ms = 400
event_time_column = "ts"
lateness_ms = 30
group_by = ["u"]
[[transform.window.aggregations]]
agg = "count"
as = "n"
[target]
connection = "lake"
path = "out"
[dead_letter]
connection = "lake"
path = "letters"
[state_store]
kind = "files"
path = "."
"""


@functools.cache
def sample_pipeline_directory() -> Path:
    """Create a config with a state and published results."""
    folder = Path(tempfile.mkdtemp(prefix="slackwater-commands-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shutil.copytree(prepare_two_epoch_state("sessions"), folder, dirs_exist_ok=True)
    (folder / "law.toml").write_text(CONFIG)
    (folder / "out").mkdir()
    times = pl.Series([0, 10_000], dtype=pl.Datetime("us", "UTC"))
    results = pl.DataFrame(
        {"u": ["a", "b"], "window_start": times, "window_end": times, "session_id": ["x", "y"], "n": [1, 2]}
    )
    results.write_parquet(folder / "out" / "000000000-x.parquet")
    return folder


@functools.cache
def commands_by_name() -> dict[tuple[str, ...], Any]:
    """Return all commands by their names."""
    return dict(_walk_commands(typer.main.get_command(app), ()))


def _walk_commands(command: Any, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    inner = getattr(command, "commands", {})
    for name, one in inner.items():
        yield from _walk_commands(one, (*names, name))
    if not inner:
        yield names, command


def draw_command_line(names: Sequence[str], rng: random.Random, command: Any, folder: Path) -> list[str]:
    """Return a command line with valid arguments, at most one of them replaced, and one or two options."""
    starts = names[-1] in STARTS
    nowhere = str(folder / "missing.toml")
    sound = {"file": str(folder / "law.toml"), "where": str(folder), "pipeline": "law"}
    required, options = [], []
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            if parameter.required or rng.random() < 0.3:
                required.append(nowhere if starts else sound.get(parameter.name, rng.choice(VALUES)))
        elif parameter.name not in ("help", "install_completion", "show_completion"):
            options.append(parameter)
    line = list(required)
    for option in rng.sample(options, min(len(options), rng.choice([1, 1, 2]))):
        if option.name in ("ui", "keep"):
            continue
        line += [option.opts[0]] if option.is_flag else [option.opts[0], rng.choice(VALUES)]
    if required and rng.random() < 0.3 and names[-1] not in STARTS:
        line[rng.randrange(len(required))] = rng.choice(VALUES)
    return [*names, *line]


def check_random_command_line(rng: random.Random) -> str:
    names = rng.choice(list(commands_by_name()))
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / "p"
        shutil.copytree(sample_pipeline_directory(), folder)
        line = draw_command_line(names, rng, commands_by_name()[names], folder)
        if names[-1] in ALONE:
            line = [*names, "--rows", rng.choice([v for v in VALUES if v != "1000000000"])]
        return run_command_line(line, Path(directory))


def run_command_line(line: Sequence[str], folder: Path, hear: Callable[[str], object] = lambda text: None) -> str:
    """Return the outcome of a command line. `hear` gets the standard error. Raise AssertionError for a defect."""
    output, former = io.StringIO(), sys.argv
    sys.argv = ["slackwater", *line]
    shown = " ".join(line)[:300].encode(errors="backslashreplace").decode()
    try:
        with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(output):
            main()
        code: Any = 0
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException as error:
        raise AssertionError(f"{shown}: {type(error).__name__}: {error}") from error
    finally:
        sys.argv = former
    text = output.getvalue()
    hear(text)
    assert code in (0, 1, 2), f"{shown}: exit code {code}: {text[:500]}"
    assert "Traceback" not in text, f"{shown}: {text[:500]}"
    assert "internal error" not in text, f"{shown}: {text[:500]}"
    assert code == 0 or text.strip(), f"{shown}: exit code {code} without a word"
    return "answered" if code == 0 else "refused"
