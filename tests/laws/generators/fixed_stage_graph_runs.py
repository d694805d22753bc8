"""Seeded stage graphs with kills, shard changes and quiet periods, compared with the batch results of each stage.

a ─┬▶ window ─┐            a ─┐                   a ─▶ window ─┐
   │          ├▶ join      b ─┴▶ join ─┐                       ├▶ window over both
b ─┴▶ window ─┘            c ──────────┴▶ join    b ─▶ window ─┘
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.laws.oracles import window_oracle

import slackwater as sw
from slackwater.config.stage import stage_inputs
from slackwater.engine.kill_points import KILL_POINTS
from slackwater.testing.local_pipeline import LocalPipeline

MS = 1000
SCHEMA = {"k": "string", "v": "bigint"}
Row = dict[str, Any]


def draw_window(rng: random.Random, key: str, column: str, last: bool = False) -> sw.Window:
    shape: dict[str, Any] = rng.choice(
        [
            {"kind": "tumbling", "duration_ms": 20, "max_groups_per_window": 1000},
            {"kind": "hopping", "duration_ms": 40, "hop_ms": 20, "max_groups_per_window": 1000},
            {"kind": "session", "gap_ms": 15, "max_session_duration_ms": 120},
        ]
    )
    return sw.Window(
        **shape,
        group_by=[key],
        aggregations=[sw.Aggregation(agg="count", as_="n"), sw.Aggregation(agg="sum", column=column, as_="total")],
        emit=rng.choice(["on_close", "final", "updates"] if last else ["on_close", "final"]),
        lateness_ms=1000,
    )


def draw_join(
    rng: random.Random, left_source: str, right_source: str, keys: tuple[str, str], columns: Mapping[str, Any]
) -> sw.Join:
    return sw.Join(
        kind=rng.choice(["inner", "left", "right", "full"]),
        left_source=left_source,
        right_source=right_source,
        left_keys=[keys[0]],
        right_keys=[keys[1]],
        lower_ms=-rng.choice([0, 10, 30]),
        upper_ms=rng.choice([0, 10, 30]),
        event_time=rng.choice(["later", "left", "right"]),
        lateness_ms=1000,
        output_left_columns=columns["left"],
        output_right_columns=columns["right"],
    )


OF_SOURCE, OF_WINDOW = ["k", "v"], ["k", "n", "total"]
OF_JOIN = ["left_k", "left_v", "right_v"]


def draw_stages(rng: random.Random) -> list[sw.Stage]:
    """Return the stages of a seed. The output of the last stage is the result."""
    source_stages = {"left": OF_SOURCE, "right": OF_SOURCE}
    windows = [sw.Stage(name="wa", from_="a", window=draw_window(rng, "k", "v"))]
    windows += [sw.Stage(name="wb", from_=rng.choice(["a", "b"]), window=draw_window(rng, "k", "v"))]
    read = windows[1].from_
    unread = [] if read == ("b",) else [sw.Stage(name="wc", from_="b", window=draw_window(rng, "k", "v"))]
    both = ["wa", "wb", *(["wc"] if unread else [])]
    return rng.choice(
        [
            lambda: [
                sw.Stage(name="j", join=draw_join(rng, "a", "b", ("k", "k"), source_stages)),
                sw.Stage(name="w", window=draw_window(rng, "left_k", "left_v")),
                sw.Stage(name="x", window=draw_window(rng, "left_k", "total", last=True)),
            ],
            lambda: [
                *windows,
                *unread,
                *([sw.Stage(name="wd", from_=["wb", "wc"], window=draw_window(rng, "k", "total"))] if unread else []),
                sw.Stage(
                    name="j",
                    join=draw_join(
                        rng, "wa", "wd" if unread else "wb", ("k", "k"), {"left": OF_WINDOW, "right": OF_WINDOW}
                    ),
                ),
            ],
            lambda: [
                sw.Stage(name="j", join=draw_join(rng, "a", "b", ("k", "k"), source_stages)),
                sw.Stage(name="w", from_="a", window=draw_window(rng, "k", "v")),
                sw.Stage(
                    name="x", join=draw_join(rng, "j", "w", ("left_k", "k"), {"left": OF_JOIN, "right": OF_WINDOW})
                ),
            ],
            lambda: [
                *windows,
                *unread,
                sw.Stage(name="u", from_=both, window=draw_window(rng, "k", "total", last=True)),
            ],
            lambda: [  # a source next to the output of a stage, in both kinds of stages
                sw.Stage(name="w", from_="a", window=draw_window(rng, "k", "v")),
                sw.Stage(name="j", join=draw_join(rng, "w", "b", ("k", "k"), {"left": OF_WINDOW, "right": OF_SOURCE})),
                sw.Stage(name="x", window=draw_window(rng, "left_k", "left_total", last=True)),
            ],
        ]
    )()


def draw_pipeline(rng: random.Random) -> sw.Pipeline:
    stages = draw_stages(rng)
    mode: Any = "append" if stages[-1].join is not None else "merge"
    return sw.pipeline(
        name="law",
        sources=[sw.Source(name=name, dataframe=object()) for name in ("a", "b")],
        connections={"tables": sw.DeltaConnection()},
        stages=stages,
        target=sw.Target(connection="tables", path="out", mode=mode),
        state_store=sw.StateStore(kind="files", path="state"),
    )


def compute_batch_results(stages: Sequence[sw.Stage], source_rows: Mapping[str, list[Row]]) -> dict[str, list[Row]]:
    """Compute the output of each stage over all rows at once."""
    rows_by_name = {name: list(rows) for name, rows in source_rows.items()}
    read = stage_inputs(stages, list(source_rows))
    for stage in stages:
        if stage.join is not None:
            rows_by_name[stage.name] = join_rows(
                stage.join, rows_by_name[stage.join.left_source], rows_by_name[stage.join.right_source]
            )
            continue
        assert stage.window is not None
        rows = [row for name in read[stage.name] for row in rows_by_name[name]]
        instant = 0 if stage.window.kind == "session" else 1
        rows_by_name[stage.name] = [
            {**r, "ts": r["window_end"] - instant}
            for r in window_oracle.compute_windows_over_all_rows(stage.window, rows)
        ]
    return rows_by_name


def join_rows(spec: sw.Join, left_rows: list[Row], right_rows: list[Row]) -> list[Row]:
    """Join by the definition: every pair, then the unmatched rows."""
    (lower, upper), joined_rows = spec.bounds_ms, list[Row]()
    matched: set[tuple[int, int]] = set()
    for i, one in enumerate(left_rows):
        for n, other in enumerate(right_rows):
            same = one[spec.left_keys[0]] == other[spec.right_keys[0]] and one[spec.left_keys[0]] is not None
            if same and lower * MS <= other["ts"] - one["ts"] <= upper * MS:
                matched |= {(0, i), (1, n)}
                when = {"left": one["ts"], "right": other["ts"], "later": max(one["ts"], other["ts"])}
                joined_rows.append(
                    {**_side_columns(spec, 0, one), **_side_columns(spec, 1, other), "ts": when[spec.event_time]}
                )
    for which, rows in enumerate((left_rows, right_rows)):
        for i, row in enumerate(rows):
            if spec.outer[which] and (which, i) not in matched:
                joined_rows.append(
                    {**_side_columns(spec, 1 - which, {}), **_side_columns(spec, which, row), "ts": row["ts"]}
                )
    return joined_rows


def _side_columns(spec: sw.Join, which: int, row: Row) -> Row:
    names = (spec.output_left_columns, spec.output_right_columns)[which] or ()
    return {f"{('left_', 'right_')[which]}{name}": row.get(name) for name in names}


def comparable_rows(rows: Any, last: sw.Stage) -> list[str]:
    """Return the rows of a result, without the metadata of their emission."""
    if last.join is not None:
        names = [*_side_columns(last.join, 0, {}), *_side_columns(last.join, 1, {})]
        return sorted(repr([r[n] for n in names] + [r["ts"]]) for r in rows)
    assert last.window is not None
    names = [*last.window.group_by, "window_start", "window_end", "n", "total"]
    return sorted(repr([r[n] for n in names]) for r in rows)


def check_fixed_graph_run(seed: int, store: Callable[[], Any] | None = None) -> None:
    rng = random.Random(seed)
    spec, now_ms, every = draw_pipeline(rng), 0, {"a": list[Row](), "b": list[Row]()}
    with LocalPipeline(spec, SCHEMA, shards=rng.choice([1, 2, 3]), store=store, capture_losses=False) as test:
        for _ in range(rng.randrange(2, 8)):
            epoch_rows: dict[str, list[Row]] = {}
            for source in rng.choice([["a"], ["b"], ["a", "b"], ["a", "b"]]):
                epoch_rows[source] = []
                for _ in range(rng.randrange(0, 8)):
                    now_ms += rng.choice([0, 3, 11, 40, 200])
                    ts = (now_ms - rng.choice([0, 0, 5, 30])) * MS
                    epoch_rows[source].append({"k": rng.choice(["x", "y", "z", None]), "v": rng.randrange(9), "ts": ts})
                every[source] += epoch_rows[source]
            if rng.random() < 0.4:
                test.crash(rng.choice(KILL_POINTS), shards=rng.choice([None, 2, 3]))
            test.pipe(epoch_rows)
            if rng.random() < 0.2:
                test.restart(shards=rng.choice([1, 2, 4]))
            if rng.random() < 0.2:
                test.quiet(500)
        test.flush()
        run_result = test.result()
        state = test._driver.state
    last, sources = spec.stages[-1], set(every)
    expected_content = comparable_rows(compute_batch_results(spec.stages, every)[last.name], last)
    if last.join is not None:
        rows = [{**r, "ts": _to_microseconds(r["_event_ts"])} for r in run_result.rows]
    else:
        times = ("window_start", "window_end")
        rows = [{**r, **{c: _to_microseconds(r[c]) for c in times}} for r in run_result.table.iter_rows(named=True)]
    assert comparable_rows(rows, last) == expected_content
    for stage in state.stages:
        if not stage.clocks.keys() & sources:
            assert stage.counters.get("late", {}) == {}, "what a stage emits is never late for the next"
    if all(
        len({s.is_stage_output for s in stage_pipeline.sources}) == 1
        for stage_pipeline in spec.stage_pipelines.values()
    ):  # otherwise the counter includes both kinds of input
        readers = [
            n for stage_pipeline in spec.stage_pipelines.values() for n in every if stage_pipeline.input_paths_from(n)
        ]
        assert run_result.counters.rows_in == sum(len(every[n]) for n in readers), "each reader counts what it reads"


def counting_stage(name: str, read: str | list[str], column: str = "v") -> sw.Stage:
    """Build a stage of tumbling windows."""
    window = sw.Window(
        kind="tumbling",
        duration_ms=20,
        max_groups_per_window=100,
        group_by=["k"],
        lateness_ms=1000,
        aggregations=[sw.Aggregation(agg="count", as_="n"), sw.Aggregation(agg="sum", column=column, as_="total")],
    )
    return sw.Stage(name=name, from_=read, window=window)


def build_stage_pipeline(*stages: sw.Stage, store: str = "files") -> sw.Pipeline:
    """Build a pipeline of these stages over source a."""
    place = {"path": "state"} if store == "files" else {"url": "postgresql:///none"}
    return sw.pipeline(
        name="law",
        sources=[sw.Source(name="a", dataframe=object())],
        connections={"tables": sw.DeltaConnection()},
        stages=stages,
        target=sw.Target(connection="tables", path="out", mode="merge"),
        state_store=sw.StateStore(kind=store, **place),
    )


def _to_microseconds(moment: Any) -> int:
    if isinstance(moment, int):
        return moment
    aware = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    return (aware - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
