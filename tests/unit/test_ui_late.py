"""What the page says of late rows: replayed ones are not late any more, and the others are a click away."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import polars as pl
from tests.support.browsing import get
from tests.support.ui_states import DAY, S, config, ran, watched

from slackwater.config import toml
from slackwater.config.window import Aggregation, Window
from slackwater.core.dead_letter import LETTER
from slackwater.runner.assemble import letters_of
from slackwater.state.files.store import FilesStore
from slackwater.testing.kit import Replay, Rows, run_local
from slackwater.ui.blocks.account import rows
from slackwater.ui.server import serve

SCHEMA = {f.name: f.polars for f in LETTER}
MS = 1000


def test_replayed_rows_are_not_late_any_more(tmp_path: Path) -> None:
    """
    gap 3     [0 ── 2]     [8 ── 9]            both are stored, and gone from the state
    late                ● 5                    is late, then applied
    """
    window = Window(
        kind="session",
        gap_ms=3,
        max_session_duration_ms=20,
        group_by=["u"],
        aggregations=[Aggregation(agg="count", as_="n")],
        late_data="dlq",
    )

    def at(*times: int) -> Rows:
        return Rows({"a": [{"ts": t * MS, "u": "a"} for t in times]})

    script = [at(0, 2, 8, 9), at(100), at(5), Replay()]
    for number, late, replayed in ((3, 1, 0), (4, 0, 1)):
        home = tmp_path / str(number)
        run_local(window, script[:number], {"u": "string"}, state_dir=str(home), flush=False)
        with FilesStore(home, "law").peek() as snapshot:
            assert snapshot is not None
            total = rows([snapshot.commit]).total
        assert (total.late, total.replayed) == (late, replayed)
        assert total.rows_in == 6 == total.used + total.late + total.replayed
        assert total.unaccounted == 0


def with_letters(tmp_path: Path) -> Path:
    """A pipeline with one published letter of a late row of u1."""
    file = config("session", tmp_path)
    lake = f'[connections.away]\nkind = "files"\n[dead_letter]\nconnection = "away"\npath = "{tmp_path}/away"\n'
    text = file.read_text().replace(
        'connection = "lake"\npath = "out"', f'connection = "lake"\npath = "{tmp_path}/out"'
    )
    file.write_text(text.replace('event_time_column = "ts"', 'event_time_column = "ts"\nlate_data = "dlq"') + lake)
    ran(file, [Rows({"web": [{"ts": DAY, "user": "u1"}], "app": [{"ts": DAY, "user": "u<b>"}]})])
    at = dt.datetime(2024, 3, 1, tzinfo=dt.UTC)
    letter = {
        "reason": "late",
        "pipeline": "law",
        "source": "web",
        "epoch": 0,
        "value": b'{"user": "u1", "note": "<script>"}',
        "event_time": at,
        "watermark": at + dt.timedelta(minutes=5),
        "late_us": 300 * S,
        "cause": "lateness",
        "file": "web/1.jsonl",
        "group_key": '{"user":"u1"}',
    }
    target = letters_of(toml.load(file), "state")
    assert target is not None
    target.open()
    target.publish(0, pl.DataFrame([{n: letter.get(n) for n in SCHEMA}], schema=SCHEMA))
    target.close()
    return file


def test_late_rows_lead_to_their_letters_and_a_key_has_its_own(tmp_path: Path) -> None:
    running = serve([watched(with_letters(tmp_path))], 0)
    try:
        found = get(running, "/letters?reason=late")
        assert found.status == 200
        for text in ("web/1.jsonl", "5 min", "&lt;script&gt;", "1 letter,"):
            assert text in found.text, text
        assert "0 letters," in get(running, "/letters?reason=future").text
        key = get(running, "/key?user=u1")
        assert "web/1.jsonl" in key.text
        assert "5 min" in key.text
        assert "Last published results" in key.text
        assert json.loads(get(running, "/ui/key.json?user=u1").body)["history"]["late"][0]["late_us"] == 300 * S
        other = get(running, "/key?user=u%3Cb%3E")
        assert "No row of this key came late." in other.text
    finally:
        running.stop()


def test_hot_keys_and_the_fullest_shard_are_shown(tmp_path: Path) -> None:
    file = config("session", tmp_path)
    heavy = [{"ts": DAY + n * S, "user": "heavy"} for n in range(9)]
    ran(file, [Rows({"web": [*heavy, {"ts": DAY, "user": "light"}], "app": []})])
    running = serve([watched(file)], 0)
    try:
        text = get(running, "/hot").text
        assert text.index("user=heavy") < text.index("user=light") or "user=light" not in text
        assert '<a href="/hot">' in get(running, "/ui/size").text
        size = json.loads(get(running, "/ui/size.json").body)
        (spread,) = size["shards"]
        assert sum(spread["rows"]) == size["commits"][-1]["rows"]
        assert spread["skew"] == max(spread["rows"]) * len(spread["rows"]) / sum(spread["rows"])
    finally:
        running.stop()
