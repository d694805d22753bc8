"""`slackwater dlq replay` of real late rows: the target becomes equal to the batch result."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.case_selection import exhaustive
from tests.support.command import run_command_for_exit_code
from tests.support.real_dataset_pipelines import split_into_input_files

pytestmark = [pytest.mark.spark]

COMMITS = """name = "commits"
[connections.lake]
kind = "files"
[connections.db]
kind = "postgres"
url = "URL"
[[sources]]
name = "events"
connection = "lake"
query = "HOME/in/*"
max_files_per_trigger = 1
format = "csv"
schema = "seq INT, sha STRING, author_time BIGINT, commit_time BIGINT, author_id STRING, nparents INT"
options = { sep = "\\t", header = true }
[transform.window]
kind = "session"
gap_ms = "30m"
max_session_duration_ms = "30d"
group_by = ["author_id"]
event_time_column = "author_time"
event_time_unit = "s"
LATE
[[transform.window.aggregations]]
agg = "count"
as = "n"
[[transform.window.aggregations]]
agg = "max"
column = "seq"
as = "newest"
[target]
connection = "db"
table = "sessions"
[dead_letter]
connection = "db"
table = "letters"
[state_store]
kind = "files"
path = "HOME/state"
"""


def expected_sessions(file: Path) -> set[tuple[str, int, int, int, int]]:
    """Compute (author, first and last event in seconds, rows, largest seq) of every session by a plain loop."""
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()[1:]
    per_author: dict[str, list[tuple[int, int]]] = {}
    for line in lines:
        seq, _, second, _, author, _ = line.split("\t")
        per_author.setdefault(author, []).append((int(second), int(seq)))
    sessions = set()
    for author, rows in per_author.items():
        rows.sort()
        heads = [i for i, (second, _) in enumerate(rows) if i == 0 or second - rows[i - 1][0] > 1800]
        for a, b in zip(heads, [*heads[1:], len(rows)], strict=True):
            sessions.add((author, rows[a][0], rows[b - 1][0], b - a, max(seq for _, seq in rows[a:b])))
    return sessions


POLICIES = {
    "reopen": ('lateness_ms = "1d"\nlate_data = "reopen"\nallowed_lateness_ms = "30d"', 20),
    "dlq": ('late_data = "dlq"', 100),
}


@pytest.mark.shared_data
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.usefixtures("spark")
@exhaustive(beside="test_real_event_files.py::test_late_rows_correct_sessions_within_the_allowed_lateness")
def test_replay_of_dead_letters_makes_the_target_equal_the_batch_result(
    real_events_folder: Path,
    postgres: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    policy: str,
) -> None:
    url, (late, least) = postgres.database(f"replayed_{policy}"), POLICIES[policy]
    file = real_events_folder / "ibis_commits.tsv.gz"
    split_into_input_files(file, tmp_path / "in", 1)
    path = tmp_path / "commits.toml"
    path.write_text(COMMITS.replace("HOME", str(tmp_path)).replace("URL", url).replace("LATE", late))
    assert run_command_for_exit_code(monkeypatch, "run", str(path), "--available-now", "--flush") == 0

    def query_rows(query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(url) as db:
            return db.execute(query).fetchall()

    def table() -> set[tuple[Any, ...]]:
        return set(
            query_rows(
                "SELECT author_id, extract(epoch FROM window_start)::bigint, extract(epoch FROM window_end)::bigint - 1800,"
                " n, newest FROM sessions"
            )
        )

    (used,), (letters,) = (
        query_rows("SELECT sum(n)::int FROM sessions"),
        query_rows("SELECT count(*)::int FROM letters"),
    )
    expected = expected_sessions(file)
    assert used[0] + letters[0] == 10_178
    assert letters[0] > least
    assert table() != expected
    capsys.readouterr()
    assert run_command_for_exit_code(monkeypatch, "dlq", "replay", str(path), "--dry-run") == 0
    assert f"commits: {letters[0]:,} letters would be applied" in capsys.readouterr().out
    assert run_command_for_exit_code(monkeypatch, "dlq", "replay", str(path), "--limit", "10") == 0
    assert "commits: 10 letters applied" in capsys.readouterr().out
    assert run_command_for_exit_code(monkeypatch, "dlq", "replay", str(path)) == 0
    said = capsys.readouterr().out
    assert f"commits: {letters[0] - 10:,} letters applied" in said
    assert "10 letters had been applied before" in said
    assert "left" not in said
    assert len(expected) == 7_453
    assert table() == expected
    assert run_command_for_exit_code(monkeypatch, "dlq", "replay", str(path)) == 0
    assert "commits: 0 letters applied" in capsys.readouterr().out
    assert table() == expected
