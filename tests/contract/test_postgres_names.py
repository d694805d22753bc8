"""Names in the Postgres store on a real server: similar pipeline names, tables of other owners, and unusual names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.fixtures.states import write_state_fixtures
from tests.fixtures.states.write_state_fixtures import HERE, KINDS
from tests.support.case_selection import select_cases
from tests.support.local_pipeline_script import MicroBatch, run_local_script

from slackwater.config.join import Join
from slackwater.config.window import Aggregation, Window
from slackwater.errors import SlackwaterError, StateError
from slackwater.maintenance import verify_state
from slackwater.state.fork import fork_store
from slackwater.state.postgres import client
from slackwater.state.postgres.cursor import escape_percents
from slackwater.state.postgres.pipeline_tables import PipelineTables
from slackwater.state.postgres.store import PostgresStore

COUNT = (Aggregation(agg="count", as_="n"),)
HOUR = 3_600_000
WINDOW = Window(
    kind="tumbling", duration_ms=1000, group_by=["k"], lateness_ms=HOUR, max_groups_per_window=100, aggregations=COUNT
)
JOIN = Join(
    kind="inner",
    left_source="a",
    right_source="b",
    left_keys=["k"],
    right_keys=["k"],
    time_window_ms=10,
    lateness_ms=HOUR,
)
THEN = Window(kind="tumbling", duration_ms=1000, group_by=["left_k"], max_groups_per_window=100, aggregations=COUNT)
NAMES = (
    "orders",
    "orders.2",
    "orders_pkey",
    "orders_closes_at_idx",
    "Orders",
    "orders.2.2",
    "o" * 46,
    "o" * 47,
    "o" * 60,
)


@pytest.fixture
def database_url(postgres: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    yield postgres.database(f"names_{abs(hash(request.node.name)):x}")


def run_window_epoch(url: str, name: str, *seconds: int, flush: bool = False) -> list[tuple[int, int]]:
    """Run one epoch of a window over these seconds. Return the window starts and counts."""
    rows = MicroBatch({"a": [{"ts": 1_000_000 * s, "k": "u"} for s in seconds]})
    result = run_local_script(
        WINDOW,
        [rows] if seconds else [],
        {"k": "string"},
        store=lambda: PostgresStore(url, "public", name),
        flush=flush,
    )
    return sorted((r["window_start"] // 1_000_000, r["n"]) for r in result.rows)


def run_join_window_epoch(url: str, name: str, *seconds: int, flush: bool = False) -> list[tuple[int, int]]:
    """Run one epoch of a join that is followed by a window. Return the window starts and counts."""
    rows = {s: [{"ts": 1_000_000 * t, "k": "u"} for t in seconds] for s in "ab"}
    store: Callable[[], Any] = lambda: PostgresStore(url, "public", name)  # noqa: E731
    script = [MicroBatch(rows)] if seconds else []
    result = run_local_script(
        JOIN, script, {"k": "string"}, sources=("a", "b"), downstream=THEN, flush=flush, store=store
    )
    return sorted((r["window_start"] // 1_000_000, r["n"]) for r in result.rows)


def list_state_problems(store: PostgresStore) -> list[str]:
    """Return the problems of a state, except the pipeline name that the test kit always uses."""
    return [str(p) for p in verify_state(store).problems if "its record belongs to the pipeline 'law'" not in str(p)]


def list_relations(url: str, kinds: str = "rvi") -> dict[str, str]:
    """Return the name and kind of every relation in the schema, except those that all pipelines share."""
    with psycopg.connect(url) as db:
        return dict(
            db.execute(
                "SELECT relname::text, relkind::text FROM pg_class WHERE relnamespace = 'public'::regnamespace"
                " AND relkind::text = ANY(%s) AND relname ~ '^slackwater_(state|staged|windows)'",
                (list(kinds),),
            ).fetchall()
        )


def test_pipeline_named_like_the_second_stage_of_another_stays_separate(database_url: str) -> None:
    assert run_window_epoch(database_url, "orders.2", 0, 1, 2) == []
    assert run_join_window_epoch(database_url, "orders", 20, 21) == []
    assert run_window_epoch(database_url, "orders.2", 3, flush=True) == [(s, 1) for s in range(4)]
    assert run_join_window_epoch(database_url, "orders", 22, flush=True) == [(20, 1), (21, 1), (22, 1)]


def test_relation_names_are_unique_across_pipelines_and_stages(database_url: str) -> None:
    owners: dict[str, tuple[str, int]] = {}
    for name in NAMES:
        for stage in range(3):
            t = PipelineTables("public", name, stage)
            names = [t.name_of(w) for w in ("state", "staged", "windows")]
            names += [*(t.name_of("state", i) for i in ("pkey", "due")), t.name_of("staged", "token")]
            for one in names:
                assert len(one.encode()) <= 63
                assert owners.setdefault(one, (name, stage)) == (name, stage)
    # a truncated name contains "#", so it differs from every pipeline name
    cut = PipelineTables("public", "o" * 60).name_of("state").removeprefix("slackwater_state_")
    assert "#" in cut
    for name in NAMES:
        run_window_epoch(database_url, name, 0)
    before = list_relations(database_url)
    assert set(before) <= set(owners)  # every index has a name chosen by Slackwater
    for name in NAMES:
        assert run_window_epoch(database_url, name, 1, flush=True) == [(0, 1), (1, 1)], name
    assert list_relations(database_url) == before


@pytest.mark.parametrize("how", ["rebuild", "remove"])
def test_rebuild_and_remove_affect_only_the_tables_of_one_pipeline(database_url: str, how: str) -> None:
    for name in NAMES:
        run_window_epoch(database_url, name, 0)
    before = list_relations(database_url, "rv")
    store = PostgresStore(database_url, "public", "orders")
    if how == "rebuild":
        store.start_over()
        store.close()
    else:
        store.open()
        run_local_script(WINDOW, [], {"k": "string"}, store=lambda: store, flush=False)
        store.open()
        from tests.support.session_store_commits import LOGIC

        store._stages[0] = LOGIC
        store.remove()
    gone = {n for n in before if n.endswith("_orders")}
    assert len(gone) == 3
    assert {n for n in list_relations(database_url, "rv") if ".before-" not in n} == set(before) - gone
    for name in NAMES[1:]:
        assert run_window_epoch(database_url, name, 1, flush=True) == [(0, 1), (1, 1)], name


def test_state_renamed_by_start_over_remains_complete_and_usable(database_url: str) -> None:
    run_join_window_epoch(database_url, "orders", 20, 21)
    store = PostgresStore(database_url, "public", "orders")
    aside = str(store.start_over()).split('"')[1]
    store.close()
    assert list_state_problems(PostgresStore(database_url, "public", aside)) == []
    assert run_join_window_epoch(database_url, "orders", 30, flush=True) == [(30, 1)]
    assert run_join_window_epoch(database_url, aside, 22, flush=True) == [(20, 1), (21, 1), (22, 1)]


@pytest.mark.parametrize(
    ("statement", "owner"),
    [
        ("CREATE TABLE slackwater_state_mine (x int)", "another program (it has no column pipeline_name)"),
        ("CREATE TABLE slackwater_state_mine (pipeline_name text DEFAULT 'theirs')", 'pipeline "theirs"'),
        ("CREATE TABLE slackwater_staged_mine (x int)", "another program (it is not a table of Slackwater)"),
        ("CREATE VIEW slackwater_windows_mine AS SELECT 1 AS x", "another program (it does not read"),
        ("CREATE TABLE t (x int); CREATE INDEX slackwater_state_mine ON t (x)", "another object, such as an index"),
        (
            "CREATE TABLE slackwater_state_mine (x int); COMMENT ON TABLE slackwater_state_mine IS"
            " 'Slackwater: state of pipeline \"theirs\", stage 2'",
            'pipeline "theirs", stage 2',
        ),
    ],
)
def test_relations_of_other_owners_are_neither_dropped_nor_used(database_url: str, statement: str, owner: str) -> None:
    with psycopg.connect(database_url) as db:
        db.execute(statement)  # type: ignore[arg-type]
    before = list_relations(database_url)
    with pytest.raises(
        StateError, match=rf"slackwater_\w+_mine\" belongs to {re.escape(owner)}.*nothing was changed; choose another"
    ):
        run_window_epoch(database_url, "mine", 0)
    assert list_relations(database_url) == before


def restore_earlier_layout(url: str, name: str, stages: int) -> None:
    """Restore the layout of earlier versions: former names, no comments, no token index, unlogged staged tables."""
    with psycopg.connect(url) as db:
        for stage in range(stages):
            new, old = (
                PipelineTables("public", name, stage),
                PipelineTables("public", name, stage, former=frozenset({stage})),
            )
            for table_kind, kind in (("windows", "VIEW"), ("staged", "TABLE"), ("state", "TABLE")):
                if db.execute("SELECT to_regclass(%s)", (client.quote_name(new.name_of(table_kind)),)).fetchone() == (
                    None,
                ):
                    continue
                if table_kind == "staged":
                    db.execute(f"DROP INDEX IF EXISTS {client.quote_name(new.name_of('staged', 'token'))}")  # type: ignore[arg-type]
                    db.execute(f"ALTER TABLE {client.quote_name(new.name_of('staged'))} SET UNLOGGED")  # type: ignore[arg-type]
                db.execute(f"COMMENT ON {kind} {client.quote_name(new.name_of(table_kind))} IS NULL")  # type: ignore[arg-type]
                if new.name_of(table_kind) != old.name_of(table_kind):
                    db.execute(
                        f"ALTER {kind} {client.quote_name(new.name_of(table_kind))} RENAME TO {client.quote_name(old.name_of(table_kind))}"
                    )  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["orders", "o" * 60])
def test_former_table_names_are_readable_and_renamed_at_the_next_start(database_url: str, name: str) -> None:
    run_join_window_epoch(database_url, name, 20, 21)
    today = list_relations(database_url)
    restore_earlier_layout(database_url, name, 2)
    assert set(list_relations(database_url)) != set(today)
    store = PostgresStore(database_url, "public", name)
    with store.peek() as snapshot:
        assert snapshot is not None
    assert list_state_problems(store) == []  # reads every row
    copy = fork_store(store, "copy")
    assert copy is not None
    assert run_join_window_epoch(database_url, "copy", 22, flush=True) == [(20, 1), (21, 1), (22, 1)]
    assert run_join_window_epoch(database_url, name, 22, flush=True) == [(20, 1), (21, 1), (22, 1)]
    assert {n for n in list_relations(database_url) if "copy" not in n} == set(today)


def test_renaming_a_former_second_stage_frees_the_name_for_a_pipeline(database_url: str) -> None:
    run_join_window_epoch(database_url, "orders", 20, 21)
    restore_earlier_layout(database_url, "orders", 2)
    with pytest.raises(StateError, match=r'"slackwater_\w+_orders\.2" belongs to pipeline "orders"'):
        run_window_epoch(database_url, "orders.2", 0)
    run_join_window_epoch(database_url, "orders")
    assert run_window_epoch(database_url, "orders.2", 0, flush=True) == [(0, 1)]
    assert run_join_window_epoch(database_url, "orders", 22, flush=True) == [(20, 1), (21, 1), (22, 1)]


def test_restart_drops_tables_left_by_a_deleted_pipeline_record(database_url: str) -> None:
    run_join_window_epoch(database_url, "orders", 20, 21)
    restore_earlier_layout(database_url, "orders", 2)
    with psycopg.connect(database_url) as db:
        db.execute("DELETE FROM slackwater_pipelines")
    assert run_join_window_epoch(database_url, "orders", 30, flush=True) == [(30, 1)]
    assert not [n for n in list_relations(database_url) if "orders.2" in n]


def test_rebuild_moves_every_table_that_has_a_former_name(database_url: str) -> None:
    run_join_window_epoch(database_url, "orders", 20, 21)
    restore_earlier_layout(database_url, "orders", 2)
    store = PostgresStore(database_url, "public", "orders")
    aside = str(store.start_over()).split('"')[1]
    store.close()
    assert {n for n in list_relations(database_url, "rv") if ".before-" not in n} == set()
    assert run_join_window_epoch(database_url, aside, 22, flush=True) == [(20, 1), (21, 1), (22, 1)]


@pytest.mark.parametrize("number", [1, 2])
def test_tables_of_an_earlier_version_are_renamed_to_current_names(database_url: str, number: int) -> None:
    with psycopg.connect(database_url) as db:
        db.execute((HERE / f"format-{number}" / "postgres.sql").read_text())  # type: ignore[arg-type]
    kind = KINDS["chained"]
    store = lambda: PostgresStore(database_url, "chained", write_state_fixtures.NAME)  # noqa: E731
    assert list_state_problems(store()) == []
    write_state_fixtures.run_script_part(kind, store, kind.story[kind.half :], kind.clock_us, flush=True)
    with psycopg.connect(database_url) as db:
        rows = db.execute(
            "SELECT relname::text FROM pg_class WHERE relnamespace = 'chained'::regnamespace AND relkind IN ('r', 'v', 'i')"
            " AND relname ~ 'law' ORDER BY 1"
        ).fetchall()
    assert {r[0] for r in rows} == {
        *(f"slackwater_{w}_law" for w in ("state", "staged")),
        *(f"slackwater_{w}_law#2" for w in ("state", "staged", "windows")),
        *(f"slackwater_state_law{s}#{i}" for s in ("", "#2") for i in ("pkey", "due")),
        "slackwater_staged_law#2#token",
    }
    assert list_state_problems(store()) == []


HOSTILE = (
    "token", "ordinal", "unit", "kind", "key_hash", "epoch", "pipeline_name", "state_version", "updated_at", "closes_at", "revision",
    "rate%", "100%s", "%(x)s", "%%", 'a"b', "a'b", "a;b", "a'); DROP TABLE precious; --", 'a"); DROP TABLE precious; --', "a b", "a\\b",
    "ä€\U0001f600", "a.b", "{x}", "$1", ":x", "?", "CamelCase", "select", "x" * 50, "n.v", "key.token", "acc.n", "\x01\x1b[2J", "\n", " ",
)  # fmt: skip


PLACES = ("join key", "two keys", "schema", "key", "value", "aggregation", "source")


@pytest.mark.parametrize("where", select_cases(PLACES))
def test_hostile_column_schema_and_source_names_give_correct_results(database_url: str, where: str) -> None:
    """Compare with a run on the files store, with reopened sessions, a read of every row and a fork.

    Each place has a third of the names, and each name occurs in at least two places.
    """
    with psycopg.connect(database_url) as db:
        db.execute("CREATE TABLE precious (x int)")
    script = [
        MicroBatch({s: [{"ts": t, "k": "u", "v": t} for t in ts] for s in ("a", "b")})
        for ts in ([0, 25_000], [12_000, 2_000_000], [5_000, 20_000])
    ]
    for number, odd in enumerate(HOSTILE[PLACES.index(where) % 3 :: 3]):
        key = [odd] if where in ("key", "join key") else [odd, "token", "key.token"] if where == "two keys" else ["k"]
        key = list(dict.fromkeys(key))
        name, source = ("n", "v") if where != "aggregation" else (odd, "v")
        source = odd if where == "value" else source
        if where == "aggregation" and odd in ("k",):
            continue
        sources = (odd, "b") if where == "source" else ("a", "b")
        if where == "join key":
            step: Any = Join(
                kind="full", left_source="a", right_source="b", left_keys=key, right_keys=key, time_window_ms=10
            )
        else:
            aggregations = (Aggregation(agg="count", as_=name), Aggregation(agg="max", column=source, as_="most"))
            step = Window(
                kind="session", gap_ms=10, max_session_duration_ms=1000, group_by=key, late_data="reopen", allowed_lateness_ms=1000,
                aggregations=aggregations,
            )  # fmt: skip
        schema = {**dict.fromkeys(key, "string"), **({} if where == "join key" else {source: "bigint"})}
        items = [
            MicroBatch({s: [{"ts": r["ts"], **dict.fromkeys(key, "u"), **({source: r["ts"]} if where != "join key" else {})} for r in item.rows["a"]] for s in sources})
            for item in script
        ]  # fmt: skip
        space = f"s{number}{odd}" if where == "schema" else "public"
        make_store = lambda space=space, number=number: PostgresStore(database_url, space, f"p{number}")  # noqa: E731
        assert (
            run_local_script(step, items, schema, sources, store=make_store, upserts=where != "join key").rows
            == run_local_script(step, items, schema, sources, upserts=where != "join key").rows
        ), odd
        assert list_state_problems(make_store()) == [], odd
        assert fork_store(make_store(), f"p{number}-2") is not None, odd
    with psycopg.connect(database_url) as db:
        assert db.execute("SELECT count(*) FROM precious").fetchone() == (0,)


def test_names_that_postgres_cannot_store_are_rejected_with_a_one_line_error(database_url: str) -> None:
    for odd in ("x" * 64, "€" * 22, "a\0b"):
        window = WINDOW.model_copy(update={"group_by": (odd,)})
        with pytest.raises(SlackwaterError, match="Postgres") as refused:
            run_local_script(
                window,
                [MicroBatch({"a": [{"ts": 0, odd: "u"}]})],
                {odd: "string"},
                store=lambda: PostgresStore(database_url, "public", "p"),
            )
        assert "\n" not in str(refused.value)


def test_key_that_equals_an_aggregation_state_column_is_rejected(database_url: str) -> None:
    window = WINDOW.model_copy(update={"group_by": ("n.n",)})
    with pytest.raises(
        SlackwaterError, match=r'group_by: "n\.n" is also a state column of aggregation "n"; rename one'
    ):
        run_local_script(window, [], {"n.n": "string"})


def test_percent_signs_in_quotes_are_escaped_in_queries() -> None:
    query = """SELECT "a%", "b""%s" FROM "%(x)s" WHERE c = %s AND d = 'x%%''"%' AND "e" = %s"""
    expected = """SELECT "a%%", "b""%%s" FROM "%%(x)s" WHERE c = %s AND d = 'x%%%%''"%%' AND "e" = %s"""
    assert escape_percents(query) == expected
    assert escape_percents("SELECT 1") == "SELECT 1"
