"""Hostile names of keys, columns and aggregations: runs and queries give correct results or a one-line error."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path

import polars as pl
from tests.laws.fuzzers import hostile_texts as words
from tests.support.local_pipeline_script import MicroBatch, run_local_script

from slackwater.config.window import Aggregation, Window
from slackwater.errors import SlackwaterError
from slackwater.maintenance import verify_state
from slackwater.query.state_view import StateView
from slackwater.state.files.store import FilesStore

S = 1_000_000


OURS = (
    "_status",
    "_closes_at",
    "_last_event",
    "_epoch",
    "__kh",
    "__ts",
    "__end",
    "__rev",
    "__out",
    "session_id",
    "n.0",
)


def _draw_name(rng: random.Random) -> str:
    return rng.choice(OURS) if rng.random() < 0.1 else words.draw_text(rng)[:300]


def check_random_column_names(rng: random.Random) -> str:
    key, other = (_draw_name(rng) if rng.random() < 0.9 else "k" for _ in range(2))
    other = "v" if other == key else other
    count, total = (_draw_name(rng) if rng.random() < 0.5 else name for name in ("n", "total"))
    rows = [{"ts": rng.randrange(60) * S, key: rng.choice("abc"), other: rng.randrange(5)} for _ in range(20)]
    expected = Counter(str(r[key]) for r in rows)
    shape = rng.choice(
        [
            {"kind": "tumbling", "duration_ms": 100_000},
            {"kind": "session", "gap_ms": 90_000, "max_session_duration_ms": 200_000},
            {"kind": "session", "gap_ms": 90_000, "max_session_duration_ms": 200_000, "emit": "updates"},
        ]
    )
    with tempfile.TemporaryDirectory() as home:
        try:
            aggregations = [Aggregation(agg="count", as_=count), Aggregation(agg="sum", column=other, as_=total)]
            window = Window(
                group_by=[key], aggregations=aggregations, max_groups_per_window=100, lateness_ms=100_000, **shape
            )
            schema = {key: "string", other: "bigint"}
            result = run_local_script(window, [MicroBatch({"a": rows})], schema, state_dir=home, flush=False)
            store = FilesStore(Path(home), "law")
            assert not verify_state(store).problems
            with StateView(store) as view:
                frame = view.scan()
                quoted = '"' + key.replace('"', '""') + '"'
                one = view.scan(f"{quoted} = 'a'")
                by_key = view.fetch({key: "a"})
                if shape["kind"] == "session":
                    assert view.find_sessions({key: "a"}, 0, 2**63 - 1).equals(by_key), "find_sessions finds others"
        except SlackwaterError as error:
            words.assert_slackwater_error(error)
            return "refused"
    assert not result.rows or "emit" in shape
    assert dict(zip(frame[key].to_list(), frame[count].to_list(), strict=True)) == dict(expected), "wrong counts"
    sums = {k: sum(int(str(r[other])) for r in rows if r[key] == k) for k in expected}
    assert dict(zip(frame[key].to_list(), frame[total].to_list(), strict=True)) == sums, "wrong sums"
    assert one.equals(frame.filter(pl.col(key) == "a")), "a where finds other rows"
    assert by_key.equals(one), "fetch finds other rows"
    return "answered"
