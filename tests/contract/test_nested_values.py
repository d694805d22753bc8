"""Arrays, structs and maps: accumulators in the real stores, and results in every target."""

from __future__ import annotations

import datetime as dt
import io
import json
import random
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import polars as pl
import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.support.case_selection import select_cases
from tests.support.iceberg_tables import sql_catalog_table
from tests.support.local_pipeline_script import MicroBatch, run_local_script

from slackwater.config.custom_aggregator import Aggregator
from slackwater.config.window import Aggregation, Window
from slackwater.connectors.console.connector import ConsoleTarget
from slackwater.connectors.delta.target import DeltaTarget
from slackwater.connectors.files.target import FilesTarget
from slackwater.connectors.kafka.message_encoding import KafkaMessageEncoder, avro_schema
from slackwater.connectors.postgres.target import PostgresTarget
from slackwater.connectors.target import TargetTable
from slackwater.core.schema import Field
from slackwater.errors import StartError
from slackwater.state.postgres.store import PostgresStore

AT = dt.datetime(2024, 3, 1, 9, 0, 0, 250_001)
NAN, INF = float("nan"), float("inf")
VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "tinyint": [-128, 127],
    "smallint": [-(2**15), 1],
    "int": [-(2**31), 1],
    "bigint": [-(2**63), 2**63 - 1],
    "float": [NAN, -0.5],
    "double": [NAN, INF, -INF, 0.1],
    "string": ["", "a'\"\n,\\N{}", "NULL", "ü"],
    "binary": [b"", b"\x00\xff"],
    "date": [dt.date(1969, 12, 31)],
    "timestamp": [AT.replace(tzinfo=dt.UTC)],
    "timestamp_ntz": [AT.replace(year=1901)],
    "decimal(10,2)": [Decimal("-1.25"), Decimal("99999999.99")],
}
ARRAYS = tuple(Field(f"a_{t.split('(')[0]}", f"array<{t}>") for t in VALUES)
COUNTS = tuple(Field(f"s_{t.split('(')[0]}", f"array<struct<value:{t},count:bigint>>") for t in VALUES)
FIELDS = (Field("key", "int"), *ARRAYS, *COUNTS, Field("pair", "struct<low:double,when:timestamp,tags:array<string>>"))
TABLE = TargetTable("p", FIELDS, ("key",))


def nested_rows() -> pl.DataFrame:
    """Return rows with full, empty and NULL values, and with NULLs inside values."""
    pairs = [[{"value": v, "count": n} for n, v in enumerate(values)] for values in VALUES.values()]
    pair = {"low": 0.5, "when": AT.replace(tzinfo=dt.UTC), "tags": ["a", 'b"']}
    rows = [
        (1, *VALUES.values(), *pairs, pair),
        (2, *[[]] * (2 * len(VALUES)), {"low": None, "when": None, "tags": []}),
        (3, *[None] * (2 * len(VALUES)), None),
        (4, *[[None]] * len(VALUES), *[[{"value": None, "count": 1}]] * len(VALUES), None),
    ]
    return pl.DataFrame(rows, schema={f.name: f.polars for f in FIELDS}, orient="row")


@pytest.fixture
def database_url(postgres: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    yield postgres.database(f"nested_{abs(hash(request.node.name)):x}")


# -- state ---------------------------------------------------------------------------------------------------------------


class BytesAggregator(Aggregator):
    """An aggregator that keeps its input as bytes, in a scalar and in an array."""

    inputs: Mapping[str, str] = {"value": "string"}
    accumulators: Mapping[str, str] = {"largest": "binary", "all": "array<binary>", "marks": "array<boolean>"}
    output = "array<binary>"

    def lift(self, value: pl.Expr) -> dict[str, pl.Expr]:
        raw = value.cast(pl.Binary)
        present = pl.concat_list(raw).list.drop_nulls()
        return {"largest": raw, "all": present, "marks": pl.concat_list(value.is_null())}

    def merge(self, largest: pl.Expr, all: pl.Expr, marks: pl.Expr) -> dict[str, pl.Expr]:
        merged_lists = {"all": all.explode().drop_nulls().sort(), "marks": marks.explode()}
        return {"largest": largest.max(), **merged_lists}

    def finish(self, largest: pl.Expr, all: pl.Expr, marks: pl.Expr) -> pl.Expr:
        return pl.concat_list(largest, all).list.drop_nulls()


def aggregations_with_nested_state(types: Mapping[str, str]) -> list[Aggregation]:
    aggregations = [
        Aggregation(agg=BytesAggregator, columns={"value": "string"}, as_="own"),
        Aggregation(agg="stddev", column="double", as_="sd"),
        *(Aggregation(agg="approx_quantile", column=c, quantile=0.9, k=8, as_=f"q_{c}") for c in ("double", "decimal")),
        *(Aggregation(agg="approx_quantile", column=c, quantile=0.9, as_=f"e_{c}") for c in ("double", "decimal")),
    ]
    for column in types:
        aggregations += [
            Aggregation(agg="collect_list", column=column, max_values_per_group=1000, as_=f"l_{column}"),
            Aggregation(agg="collect_set", column=column, max_values_per_group=1000, as_=f"s_{column}"),
            Aggregation(agg="top_k", column=column, k=2, max_distinct_values_per_group=1000, as_=f"t_{column}"),
            Aggregation(agg="min_by", column=column, by="bigint", as_=f"m_{column}"),
            Aggregation(agg="max_by", column="bigint", by=column, as_=f"x_{column}"),
        ]
    return aggregations


@pytest.mark.parametrize("kind", select_cases(["session", "hopping"]))
def test_postgres_and_files_accumulators_give_same_results(kind: str, database_url: str) -> None:
    chance = random.Random(7)
    types = {t.split("(")[0]: t for t in VALUES}
    micros = {
        "timestamp": lambda v: round(v.timestamp() * 1e6),
        "timestamp_ntz": lambda v: round(v.replace(tzinfo=dt.UTC).timestamp() * 1e6),
    }

    def value(name: str) -> Any:
        choice = chance.choice([None, *VALUES[types[name]]])
        return micros[name](choice) if name in micros and choice is not None else choice

    rows = [{"ts": n * 700, "u": "ab"[n % 2], **{c: value(c) for c in types}} for n in range(60)]
    shape = {"kind": "session", "gap_ms": 5, "max_session_duration_ms": 1000}
    if kind == "hopping":
        shape = {"kind": "hopping", "duration_ms": 12, "hop_ms": 4, "max_groups_per_window": 99}
    window = Window(group_by=["u"], aggregations=aggregations_with_nested_state(types), **shape)
    script = [MicroBatch({"a": rows[n : n + 9]}) for n in range(0, 60, 9)]
    schema = {"u": "string", **types}
    expected = run_local_script(window, script, schema).rows
    got = run_local_script(
        window, script, schema, store=lambda: PostgresStore(database_url, "public", "law"), reshard_after=3
    ).rows

    def exact(rows: list[dict[str, Any]]) -> str:
        return repr([{k: v for k, v in r.items() if k != "_epoch" and not k.startswith("q_")} for r in rows])

    assert exact(got) == exact(expected)
    assert len(got) > 1
    assert all(r["q_decimal"] in (-1.25, 99999999.99) for r in got)
    with psycopg.connect(database_url) as db:
        kinds = dict(
            db.execute(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attnum > 0 AND"
                " attrelid = 'slackwater_state_law'::regclass"
            ).fetchall()
        )
    assert (kinds["own.largest"], kinds["own.all"], kinds["q_double.sketch"]) == ("bytea", "bytea[]", "bytea[]")
    assert (kinds["t_decimal.values"], kinds["t_decimal.counts"]) == ("numeric(10,2)[]", "bigint[]")


# -- targets -------------------------------------------------------------------------------------------------------------


def test_parquet_delta_and_iceberg_preserve_declared_types(tmp_path: Path) -> None:
    FilesTarget(tmp_path / "files", "parquet", TABLE).publish(0, nested_rows())
    assert pl.read_parquet(tmp_path / "files" / "p-000000000.parquet").equals(nested_rows())
    for _ in range(2):
        target = DeltaTarget(str(tmp_path / "delta"), "merge", TABLE)
        target.open()
        for epoch in (target.last_epoch() + 1, target.last_epoch() + 2):
            target.publish(epoch, nested_rows())
    delta_rows = pl.from_arrow(pa.table(DeltaTable(tmp_path / "delta").to_pyarrow_table()))
    assert isinstance(delta_rows, pl.DataFrame)
    assert delta_rows.sort("key").equals(nested_rows())
    assert DeltaTable(tmp_path / "delta").version() == 4
    lake = sql_catalog_table(tmp_path)
    for epoch in range(3):
        lake.open_target(TABLE).publish(epoch, nested_rows())
    stored = lake.read_rows().select(pl.col(f.name).cast(f.polars) for f in FIELDS)
    assert stored.sort("key").equals(nested_rows())
    other = TargetTable("p", (FIELDS[0], Field("a_int", "array<bigint>"), *FIELDS[1:4], *FIELDS[5:]), ("key",))
    for elsewhere in (DeltaTarget(str(tmp_path / "delta"), "merge", other), lake.create_target(other)):
        with pytest.raises(StartError, match=r'column "a_int" is array<int>, expected array<bigint>; change'):
            elsewhere.open()


def test_json_output_is_nested_and_csv_output_contains_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FilesTarget(tmp_path / "json", "json", TABLE).publish(0, nested_rows())
    full, empty, nothing, within = map(json.loads, (tmp_path / "json" / "p-000000000.jsonl").read_text().splitlines())
    assert full["a_string"] == VALUES["string"]
    assert full["s_binary"] == [{"value": "", "count": 0}, {"value": "00ff", "count": 1}]
    assert full["pair"] == {"low": 0.5, "when": "2024-03-01T09:00:00.250001Z", "tags": ["a", 'b"']}
    assert (empty["a_int"], nothing["a_int"], within["s_int"]) == ([], None, [{"value": None, "count": 1}])
    FilesTarget(tmp_path / "csv", "csv", TABLE).publish(0, nested_rows())
    table = pl.read_csv(tmp_path / "csv" / "p-000000000.csv")
    assert json.loads(table["a_double"][0]) == ["NaN", "Infinity", "-Infinity", 0.1]
    assert json.loads(table["s_decimal"][0]) == [{"value": "-1.25", "count": 0}, {"value": "99999999.99", "count": 1}]
    assert table["a_string"].to_list()[1:] == ["[]", None, "[null]"]
    ConsoleTarget().publish(0, nested_rows().select("a_int", "pair"))
    assert "[-2147483648,1]" in capsys.readouterr().out


def test_kafka_messages_encode_nested_values_as_json_and_avro() -> None:
    full, empty, nothing, within = (
        json.loads(v or b"") for _, v, _ in KafkaMessageEncoder(TABLE).messages(nested_rows())
    )
    assert full["s_double"][0] == {"value": "NaN", "count": 0}
    assert full["a_binary"] == ["", "AP8="]
    assert full["a_timestamp_ntz"] == ["1901-03-01T09:00:00.250001"]
    assert (empty["pair"], nothing["pair"]) == ({"low": None, "when": None, "tags": []}, None)
    assert (nothing["a_int"], within["a_int"]) == (None, [None])
    schema = avro_schema(TABLE)
    read = [
        fastavro.schemaless_reader(io.BytesIO(v or b""), schema, None)
        for _, v, _ in KafkaMessageEncoder(TABLE, "avro").messages(nested_rows())
    ]
    plain = nested_rows().to_dicts()
    assert repr(read).replace("datetime.timezone.utc", "zoneinfo.ZoneInfo(key='UTC')") == repr(plain)


def test_postgres_stores_scalar_arrays_as_arrays_and_structs_as_json(database_url: str) -> None:
    for epoch in range(2):
        target = PostgresTarget(database_url, "out", TABLE)
        target.open()
        target.publish(epoch, nested_rows())
        target.close()
    with psycopg.connect(database_url) as db:
        names = [f.name for f in FIELDS]
        cursor = db.execute(f"SELECT {', '.join(names)} FROM out ORDER BY key")
        full, empty, nothing, within = (dict(zip(names, row, strict=True)) for row in cursor.fetchall())
        assert db.execute("SELECT s_string->1->>'value', a_int[2] FROM out WHERE key = 1").fetchone() == (
            VALUES["string"][1],
            1,
        )
    expected = nested_rows().to_dicts()
    for name in (f.name for f in ARRAYS):
        assert repr(full[name]).replace("Etc/UTC", "UTC") == repr(expected[0][name])
        assert (empty[name], nothing[name], within[name]) == ([], None, [None])
    assert full["s_bigint"] == [{"value": -(2**63), "count": 0}, {"value": 2**63 - 1, "count": 1}]
    assert full["s_float"] == [{"value": "NaN", "count": 0}, {"value": -0.5, "count": 1}]
    assert within["s_int"] == [{"value": None, "count": 1}]
    assert nothing["pair"] is None
    with psycopg.connect(database_url) as db:
        db.execute("ALTER TABLE out ALTER a_int TYPE bigint[], ALTER pair TYPE json")
    assert PostgresTarget(database_url, "out", TABLE).problems() == [
        f'{PostgresTarget(database_url, "out", TABLE).description}: column "a_int" is bigint[], expected integer[]'
    ]


# -- maps ----------------------------------------------------------------------------------------------------------------

MAPS = (
    Field("key", "int"),
    Field("plain", "map<string,int>"),
    Field("numbered", "map<int,timestamp>"),
    Field("listed", "array<map<string,decimal(10,2)>>"),
    Field("within", "struct<m:map<string,struct<when:timestamp,tags:array<string>>>>"),
)
WHEN = AT.replace(tzinfo=dt.UTC)


def map_rows() -> pl.DataFrame:
    rows = [
        (
            1,
            [{"key": "a", "value": 1}, {"key": 'b"', "value": None}],
            [{"key": 7, "value": WHEN}],
            [[{"key": "x", "value": Decimal("1.25")}], None, []],
            {"m": [{"key": "k", "value": {"when": WHEN, "tags": ["t", None]}}]},
        ),
        (2, [], [], [], {"m": None}),
        (3, None, None, None, None),
    ]
    return pl.DataFrame(rows, schema={f.name: f.polars for f in MAPS}, orient="row")


def test_maps_are_written_to_every_target(tmp_path: Path, database_url: str) -> None:
    """Parquet, Delta, Iceberg and Avro have maps. Postgres has jsonb. JSON has objects for string keys, else lists."""
    table, text = TargetTable("p", MAPS, None), "2024-03-01T09:00:00.250001Z"
    expected = [
        {
            "key": 1,
            "plain": {"a": 1, 'b"': None},
            "numbered": [{"key": 7, "value": text}],
            "listed": [{"x": "1.25"}, None, {}],
            "within": {"m": {"k": {"when": text, "tags": ["t", None]}}},
        },
        {"key": 2, "plain": {}, "numbered": [], "listed": [], "within": {"m": None}},
        {"key": 3, "plain": None, "numbered": None, "listed": None, "within": None},
    ]
    FilesTarget(tmp_path / "json", "json", table).publish(0, map_rows())
    assert [json.loads(x) for x in (tmp_path / "json" / "p-000000000.jsonl").read_text().splitlines()] == expected
    assert [json.loads(v or b"") for _, v, _ in KafkaMessageEncoder(table).messages(map_rows())] == expected
    FilesTarget(tmp_path / "files", "parquet", table).publish(0, map_rows())
    stored = pl.read_parquet(tmp_path / "files" / "p-000000000.parquet")
    assert stored["plain"].to_list() == map_rows()["plain"].to_list()
    delta = DeltaTarget(str(tmp_path / "delta"), "append", table)
    delta.open()
    delta.publish(0, map_rows())
    delta_rows = pa.table(DeltaTable(tmp_path / "delta").to_pyarrow_table()).sort_by("key")
    assert delta_rows["plain"].to_pylist() == [[("a", 1), ('b"', None)], [], None]
    lake = sql_catalog_table(tmp_path)
    lake.open_target(table, "append").publish(0, map_rows())
    assert lake.read_rows().sort("key")["plain"].to_list() == map_rows()["plain"].to_list()
    postgres = PostgresTarget(database_url, "maps", table)
    postgres.open()
    postgres.publish(0, map_rows())
    postgres.close()
    with psycopg.connect(database_url) as db:
        assert [r[0] for r in db.execute("SELECT plain FROM maps ORDER BY key").fetchall()] == [
            e["plain"] for e in expected
        ]
    schema = avro_schema(table)
    read: list[Any] = [
        fastavro.schemaless_reader(io.BytesIO(v or b""), schema, None)
        for _, v, _ in KafkaMessageEncoder(table, "avro").messages(map_rows())
    ]
    assert read[0]["plain"] == {"a": 1, 'b"': None}
    assert read[0]["numbered"] == [{"key": 7, "value": WHEN}]
    assert read[0]["listed"] == [{"x": Decimal("1.25")}, None, {}]
    assert read[0]["within"] == {"m": {"k": {"when": WHEN, "tags": ["t", None]}}}
    assert (read[1]["plain"], read[2]["within"]) == ({}, None)
