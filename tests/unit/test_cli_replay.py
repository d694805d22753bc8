"""`slackwater dlq replay` before Spark starts: its options, errors and summary."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from slackwater.cli.dlq import parse_epoch_range, summary_lines
from slackwater.config import toml
from slackwater.config.config_warnings import describe_replay_limits
from slackwater.connectors import dead_letter_restoration
from slackwater.connectors.pipeline_sources import DataFrameSource
from slackwater.core.dead_letter_columns import SCHEMA
from slackwater.dead_letters.replay import ReplayResult
from slackwater.errors import LockHeldError, StartError
from slackwater.runner.replay_runner import replay_dead_letters
from slackwater.state.files.store import FilesStore

CONFIG = """name = "orders"
[connections.lake]
kind = "files"
[[sources]]
name = "orders"
connection = "lake"
query = "HOME/in"
format = "json"
schema = "user STRING, ts TIMESTAMP"
[transform.window]
kind = "tumbling"
duration_ms = "1m"
event_time_column = "ts"
max_groups_per_window = 10
LATE
[[transform.window.aggregations]]
agg = "count"
as = "n"
[target]
connection = "lake"
path = "HOME/out"
[state_store]
kind = "files"
path = "HOME/state"
"""
LETTERS = '[dead_letter]\nconnection = "lake"\npath = "HOME/letters"\n'


def load_orders_pipeline(home: Path, letters: str = LETTERS) -> object:
    (home / "in").mkdir()
    path = home / "orders.toml"
    path.write_text(
        (CONFIG + letters).replace("HOME", str(home)).replace("LATE", 'late_data = "dlq"' if letters else "")
    )
    return toml.load(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, (None, None)), ("3", (3, 3)), ("3..7", (3, 7)), ("3..", (3, None)), ("..7", (None, 7))],
)
def test_epoch_range_is_parsed(text: str | None, expected: tuple[int | None, int | None]) -> None:
    assert parse_epoch_range(text) == expected


@pytest.mark.parametrize("text", ["..", "a..b", "-1", "3-7", ""])
def test_invalid_epoch_range_is_rejected(text: str) -> None:
    with pytest.raises(StartError, match=r"is not a range of epochs; expected A\.\.B, A\.\., \.\.B or a single number"):
        parse_epoch_range(text)


def test_empty_epoch_range_is_rejected() -> None:
    with pytest.raises(StartError, match=r'--epoch "7\.\.3" selects no epochs, because 7 is greater than 3'):
        parse_epoch_range("7..3")


def test_replay_summary_counts_dead_letters_by_outcome() -> None:
    outcome = ReplayResult(1200, Counter({"too old": 2, "gone": 5}), 1, Counter({"late": 700, "supersede": 3}))
    assert list(summary_lines(outcome, "orders", dry=False)) == [
        "orders: 1,200 letters applied: 700 windows written, 3 deleted",
        "  1 letter had been applied before",
        "  5 letters not applied: gone",
        "  2 letters not applied: too old",
    ]
    assert list(summary_lines(ReplayResult(1), "orders", dry=True)) == ["orders: 1 letter would be applied"]
    again = ReplayResult(3, Counter({"bad again: undecodable": 1}), renewed=Counter({"late": 2}), refused=1)
    assert list(summary_lines(again, "orders", dry=True)) == [
        "orders: 3 letters would be applied",
        "  2 rows now late: new letters replace them",
        "  1 row refused: max_groups_per_window is reached",
        "  1 letter not applied: bad again: undecodable",
    ]


@pytest.mark.parametrize(
    ("source", "why"),
    [("web", 'dead letters of source "web" cannot be replayed yet: only those of files, tables and Kafka can be turned back into rows'),
     ("old", 'dead letters of source "old" cannot be replayed: the config has no such source, only web; restore the source, or select')],
)  # fmt: skip
def test_dead_letters_of_sources_that_cannot_replay_are_rejected(source: str, why: str) -> None:
    letters = pl.DataFrame({"source": [source]})
    with pytest.raises(StartError, match=why):
        dead_letter_restoration.restore_source_frames(None, [DataFrameSource("web", None)], letters)  # type: ignore[arg-type]


def select_all_dead_letters(letters: object) -> object:
    return letters


def test_replay_without_a_dead_letter_target_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        StartError, match=r"orders: the config has no \[dead_letter\], so the pipeline stores no dead letters"
    ):
        replay_dead_letters(load_orders_pipeline(tmp_path, letters=""), select_all_dead_letters)  # type: ignore[arg-type]


def test_replay_while_a_runner_is_active_is_rejected(tmp_path: Path) -> None:
    spec, store = load_orders_pipeline(tmp_path), FilesStore(str(tmp_path / "state"), "orders")
    store.open()
    with pytest.raises(
        LockHeldError, match=r"already running: process \d+ .*; stop the runner, repeat the replay, and"
    ):
        replay_dead_letters(spec, select_all_dead_letters)  # type: ignore[arg-type]
    store.close()


LATE_LETTER = {"reason": "late", "pipeline": "orders", "source": "orders", "epoch": 1}
BAD_LETTER = {"reason": "undecodable", "pipeline": "orders", "source": "orders", "epoch": 1, "value": b"{".hex()}


def write_dead_letters(home: Path, *letters: dict[str, object]) -> None:
    (home / "letters").mkdir()
    rows = [{n: one.get(n) for n in SCHEMA} for one in letters]
    pl.DataFrame(rows, schema={n: pl.String if t == pl.Binary else t for n, t in SCHEMA.items()}).write_ndjson(
        home / "letters" / "orders-letters-000000001.jsonl"
    )


def test_late_dead_letters_of_an_append_only_target_are_rejected(tmp_path: Path) -> None:
    spec = load_orders_pipeline(tmp_path, LETTERS + 'format = "json"\n')
    write_dead_letters(tmp_path, LATE_LETTER, BAD_LETTER)
    with pytest.raises(StartError) as refused:
        replay_dead_letters(spec, select_all_dead_letters)  # type: ignore[arg-type]
    assert str(refused.value) == (
        "orders: 1 dead letter of late rows cannot be replayed: late rows correct windows in the target, but the "
        f'target ("{tmp_path}/out") is append-only; expected a Postgres table, or a Delta or Iceberg table with '
        'mode = "merge"; '
        "nothing was replayed; to replay the others, pass --reason undecodable"
    )
    with pytest.raises(StartError, match="there is no state yet"):  # other dead letters pass this check
        replay_dead_letters(spec, lambda letters: letters.filter(pl.col("reason") != "late"))  # type: ignore[arg-type]


def build_orders_config(target: str, metadata: bool = False, kind: str = "") -> str:
    text = (
        CONFIG.replace("LATE", 'late_data = "dlq"\nemit_metadata = true' if metadata else 'late_data = "dlq"') + LETTERS
    )
    text = text.replace('[target]\nconnection = "lake"\npath = "HOME/out"\n', target)
    return text.replace("HOME", "/tmp/none") + kind


PLACES = """[connections.pg]
kind = "postgres"
url = "postgresql://u@h/d"
[connections.bus]
kind = "kafka"
bootstrap_servers = "h:9092"
[connections.tables]
kind = "delta"
"""
FILES, PG = '{ name = "a", connection = "lake", path = "o" }', '{ name = "b", connection = "pg", table = "t" }'


@pytest.mark.parametrize(
    ("target", "metadata", "why"),
    [
        ('[target]\nconnection = "lake"\npath = "o"\n', False, "is append-only"),
        ('[target]\nconnection = "pg"\ntable = "t"\n', False, None),
        ('[target]\nconnection = "bus"\ntopic = "t"\n', False, "cannot be read back"),
        ('[target]\nconnection = "tables"\npath = "o"\n', False, None),
        ('[target]\nconnection = "tables"\npath = "o"\nmode = "append"\n', False, "is append-only"),
        (f"targets = [{FILES}, {PG}]\n", False, "is append-only"),
        (f"targets = [{FILES}, {PG}]\n", True, None),
    ],
)
def test_check_notes_targets_that_late_dead_letters_cannot_correct(
    target: str, metadata: bool, why: str | None
) -> None:
    """`check` agrees with `replay._check_late`."""
    text = build_orders_config("" if target.startswith("targets") else target, metadata) + PLACES
    notes = list(describe_replay_limits(toml.loads(target + text if target.startswith("targets") else text)))
    if why is None:
        assert notes == []
    else:
        assert why in notes[0]


def test_replay_before_the_first_run_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        StartError, match=r"orders: there is no state yet, so there is nothing to replay; run the pipeline first"
    ):
        replay_dead_letters(load_orders_pipeline(tmp_path), select_all_dead_letters)  # type: ignore[arg-type]
    store = FilesStore(str(tmp_path / "state"), "orders")
    store.open()  # the lock is free again
    store.close()
