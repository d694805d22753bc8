"""Configs that Spark accepts or refuses, to compare with the verdict of `check`.

There is one base pipeline with places to change. A case is a dict of changed places.
"""

from __future__ import annotations

from slackwater.config import toml
from slackwater.config.pipeline import Pipeline

TOML = """name = "cases"
[connections.lake]
kind = "files"
{spark}
[[sources]]
name = "events"
connection = "lake"
query = "in/*.jsonl"
format = "json"
{schema}
{more_sources}
[transform]
{sql}
[transform.lookups.users]
connection = "lake"
query = "users/*.jsonl"
format = "json"
schema = "id STRING, segment STRING, score DOUBLE"
[transform.window]
kind = "{kind}"
{length}
event_time_column = "{time}"
{unit}
group_by = [{keys}]
max_groups_per_window = 1000
[[transform.window.aggregations]]
agg = "count"
as = "n"
[[transform.window.aggregations]]
{aggregation}
as = "a"
[target]
connection = "lake"
path = "out"
[state_store]
kind = "in_memory"
"""
SCHEMA = (
    "user_id STRING, amount DECIMAL(10,2), n BIGINT, ts TIMESTAMP, at STRING, tags ARRAY<STRING>, "
    "place STRUCT<city: STRING, zip: INT>, m MAP<STRING, INT>, `odd name` INT, flag BOOLEAN, day DATE, idle_ms INT"
)
PLACES = {
    "spark": "",
    "schema": f'schema = "{SCHEMA}"',
    "more_sources": "",
    "sql": 'sql = "SELECT user_id, amount, n, _event_ts FROM source"',
    "kind": "session",
    "length": 'gap_ms = "30s"\nmax_session_duration_ms = "1h"',
    "time": "ts",
    "unit": "",
    "keys": '"user_id"',
    "aggregation": 'agg = "sum"\ncolumn = "amount"',
}


def build_sql_case_config(**changed: str) -> str:
    if "query" in changed:
        changed["sql"] = f'sql = """{changed.pop("query")}"""'
    return TOML.format(**{**PLACES, **changed})


def load_sql_case_pipeline(**changed: str) -> Pipeline:
    return toml.loads(build_sql_case_config(**changed), "p.toml")


_ALL = "user_id, amount, n, _event_ts"
GAP = 'gap_ms = "{}"\nmax_session_duration_ms = "1h"'

ACCEPTED: list[dict[str, str]] = [
    {},
    {"sql": ""},
    {"query": "SELECT * FROM source"},
    {"query": "SELECT s.* FROM source s"},
    {"query": "SELECT * EXCEPT (tags, place) FROM source WHERE flag"},
    {"query": f"FROM source SELECT {_ALL}"},
    {"query": f"select {_ALL} from SOURCE where upper(USER_ID) <> 'A' or n between 1 and 3 -- a comment"},
    {"query": f"SELECT {_ALL} FROM source;"},
    {"query": "SELECT user_id, amount * 2 AS amount, amount + 1 AS more, more * 2 AS twice, _event_ts FROM source"},
    {"query": "SELECT upper(user_id) AS user_id, CAST(n AS DOUBLE) AS amount, _event_ts FROM source"},
    {"query": "SELECT user_id, n::double AS amount, _event_ts FROM source"},
    {"query": "SELECT user_id, CAST(amount AS DOUBLE), _event_ts FROM source"},
    {"query": "SELECT user_id, `odd name` AS amount, source.place.city, _event_ts FROM source"},
    {"query": "SELECT place.city AS user_id, place.zip AS amount, m['a'], m.a, tags[0], _event_ts FROM source"},
    {"query": "SELECT place.city, place.zip AS amount, _event_ts FROM source", "keys": '"city"'},
    {"query": "SELECT place.*, _event_ts, amount FROM source", "keys": '"city"'},
    {"query": f"SELECT {_ALL}, transform(tags, t -> concat(t, user_id)) AS tags FROM source"},
    {"query": f"SELECT {_ALL}, exists(tags, t -> t = user_id) AS b, filter(tags, (t, i) -> i > n) AS f FROM source"},
    {"query": f"SELECT {_ALL}, aggregate(tags, 0, (acc, t) -> acc + length(t)) AS s FROM source"},
    {"query": "SELECT user_id, tag, amount, _event_ts FROM source LATERAL VIEW explode(tags) t AS tag"},
    {"query": "SELECT user_id, explode(tags) AS tag, amount, _event_ts FROM source", "keys": '"user_id", "tag"'},
    {"query": "SELECT explode(tags), user_id, amount, _event_ts FROM source", "keys": '"col"'},
    {"query": "SELECT user_id, explode(m) AS (k, v), amount, _event_ts FROM source", "keys": '"k"'},
    {"query": "SELECT inline(array(place)), amount, _event_ts FROM source", "keys": '"zip"'},
    {"query": "SELECT explode_outer(tags), user_id, amount, _event_ts FROM source", "keys": '"col"'},
    {"query": f"WITH a AS (SELECT s.n FROM source s JOIN source t ON s.n = t.n) SELECT {_ALL} FROM source"},
    {"query": f"WITH a AS (SELECT n FROM source UNION ALL SELECT 1) SELECT {_ALL} FROM source"},
    {"query": "SELECT users.segment AS user_id, n, amount, _event_ts FROM (source JOIN users ON user_id = id)"},
    {"query": "SELECT stack(2, user_id, at) AS user_id, amount, _event_ts FROM source"},
    {"query": f"WITH a AS (SELECT * FROM source WHERE n > 1), b AS (SELECT * FROM a) SELECT {_ALL} FROM b"},
    {"query": f"SELECT {_ALL} FROM (SELECT * FROM source WHERE n > 1) AS s"},
    {"query": "SELECT q.u AS user_id, q.a AS amount, q.t AS _event_ts FROM (SELECT user_id, amount, _event_ts FROM source) q(u, a, t)"},
    {"query": f"SELECT {_ALL} FROM source WHERE n > 1 UNION ALL SELECT {_ALL} FROM source WHERE n < 1"},
    {"query": f"SELECT {_ALL}, segment FROM source LEFT JOIN users ON user_id = id", "keys": '"segment"'},
    {"query": "SELECT s.user_id, u.segment, u.score AS amount, s._event_ts FROM source AS s JOIN users AS u ON s.user_id = u.id"},
    {"query": f"SELECT /*+ BROADCAST(users) */ {_ALL} FROM source LEFT SEMI JOIN users ON user_id = id"},
    {"query": f"SELECT {_ALL} FROM source LEFT ANTI JOIN users u ON user_id = u.id"},
    {"query": "SELECT id, amount, _event_ts FROM source JOIN (SELECT id, id AS user_id FROM users) USING (user_id)", "keys": '"id"'},
    {"query": f"SELECT {_ALL} FROM source, users WHERE user_id = id"},
    {"query": f"SELECT {_ALL}, CASE WHEN n > 1 THEN 'a' ELSE 'b' END AS c, n DIV 2 AS d, n % 2 AS e FROM source"},
    {"query": f"SELECT {_ALL}, timestampadd(HOUR, 1, ts) AS t, dateadd(DAY, 1, day) AS u, datediff(DAY, ts, ts) AS v FROM source"},
    {"query": f"SELECT {_ALL}, date_trunc('hour', ts) AS t, extract(HOUR FROM ts) AS h, INTERVAL '1' DAY AS i FROM source"},
    {"query": f"SELECT {_ALL}, from_json(at, 'a INT').a AS j, get_json_object(at, '$.x') AS g, at RLIKE 'a+' AS r FROM source"},
    {"query": f"SELECT {_ALL}, named_struct('a', n).a AS s, struct(n AS b).b AS t, coalesce(at, user_id) AS c FROM source"},
    {"query": f"SELECT {_ALL}, greatest(n, 1) AS g, nvl2(at, 1, 2) AS h, if(flag, 1, 2) AS i, xxhash64(user_id) AS x FROM source"},
    {"query": f"SELECT {_ALL}, date '2024-01-01' AS d, try_cast(at AS INT) AS i FROM source"},
    {"query": f"SELECT {_ALL}, substring(at FROM 1 FOR 2) AS s, trim(BOTH ' ' FROM at) AS t, position('a' IN at) AS p FROM source"},
    {"query": f"SELECT {_ALL} FROM source |> WHERE n > 1"},
    {"query": f"SELECT {_ALL} FROM source DISTRIBUTE BY user_id"},
    {"query": f"SELECT {_ALL} FROM source WHERE user_id IN ('a', 'b') AND NOT flag AND at LIKE 'a%' AND ts IS NOT NULL"},
    {"query": f"SELECT {_ALL}, current_user() AS u, version() AS v FROM source"},
    {"query": "TABLE source"},
    {"query": f"SELECT {_ALL}, n >>> 1 AS x FROM source"},
    {"query": f"SELECT {_ALL}, n AS when, at AS then FROM source"},
    {"query": f"SELECT {_ALL} FROM source WHERE CAST(NULL AS VOID) IS NULL"},
    {"query": f"SELECT {_ALL}, CAST(at AS STRING COLLATE UTF8_LCASE) AS c FROM source"},
    {"query": f"SELECT {_ALL} FROM source; -- the end"},
    {"query": f"SELECT {_ALL} FROM source LIMIT ALL"},
    {"query": "SELECT user_id, n minus, amount, _event_ts FROM source"},
    {"query": f"SELECT {_ALL} FROM source, range(2)"},
    {"query": f"SELECT {_ALL}, ' DATE \\\\'today\\\\'' AS d, DATE '2024-01-01' AS e FROM source"},
    {"query": f"SELECT {_ALL}, aes_encrypt(at, '0000111122223333', 'ECB') AS e FROM source"},
    {"query": "SELECT user_id AS `a b`, amount, _event_ts FROM source", "keys": '"a b"'},
    {"query": "SELECT USER_ID, amount, _event_ts FROM source", "keys": '"USER_ID"'},
    {"query": "SELECT ts AS _event_ts, user_id, amount FROM source"},
    {"query": "SELECT CAST(at AS TIMESTAMP) AS _event_ts, user_id, amount FROM source"},
    {"query": "SELECT to_timestamp(at, 'yyyy') AS _event_ts, user_id, amount FROM source"},
    {"time": "at"},
    {"time": "day"},
    {"time": "n", "unit": 'event_time_unit = "ms"'},
    {"time": "to_timestamp(at)"},
    {"time": "to_timestamp(at, 'yyyy-MM-dd')"},
    {"time": "TS"},
    {"time": "CAST(`odd name` AS BIGINT)", "unit": 'event_time_unit = "s"'},
    {"time": "n div 1000", "unit": 'event_time_unit = "s"'},
    {"query": "SELECT *, n * 1000 AS gap FROM source", "length": GAP.format("gap")},
    {"query": "SELECT * FROM source", "length": GAP.format("CASE WHEN flag THEN 1000 ELSE idle_ms END")},
    {"query": "SELECT * FROM source", "length": GAP.format("concat(idle_ms, ' minutes')")},
    {"query": "SELECT * FROM source", "length": GAP.format("make_interval(0, 0, 0, 0, 0, idle_ms)")},
    {"query": "SELECT * FROM source", "length": GAP.format("INTERVAL 30 SECONDS")},
    {"query": "SELECT * FROM source", "aggregation": 'agg = "max_by"\ncolumn = "at"\nby = "ts"'},
    {"query": "SELECT * FROM source", "aggregation": 'agg = "count_distinct"\ncolumn = "flag"', "keys": '"day", "odd name"'},
    {"schema": 'schema = "user_id: string, amount: double, ts: timestamp, n: long"'},
    {"schema": "schema = \"user_id STRING NOT NULL COMMENT 'who, if known', amount REAL, ts TIMESTAMP_LTZ, n INT\""},
    {"schema": 'schema = "user_id STRING COLLATE UTF8_LCASE, amount DOUBLE, ts TIMESTAMP_NTZ, n VARIANT"', "query": "SELECT 'a' AS user_id, amount, _event_ts FROM source"},
]  # fmt: skip

# (changed places, reported key, part of the message)
REFUSED: list[tuple[dict[str, str], str, str]] = [
    ({"query": "SELECT user_id, x, amount, _event_ts FROM source, LATERAL explode(tags) AS t(x)"}, "transform.sql", "a lateral subquery"),
    ({"schema": 'schema = "user_id CHAR(3), amount DOUBLE, ts TIMESTAMP, n INT"'}, "sources[0].schema", "use STRING"),
    ({"query": f"SELCT {_ALL} FROM source"}, "transform.sql", 'did you mean "SELECT"?'),
    ({"query": f"SELECT {_ALL} FROM source WHERE (n > 1"}, "transform.sql", 'unclosed "("'),
    ({"query": f"SELECT {_ALL} FROM source WHERE n > 1)"}, "transform.sql", 'extra ")" on line'),
    ({"query": f"SELECT {_ALL} FROM source WHERE user_id = 'a"}, "transform.sql", "quote"),
    ({"query": f"SELECT {_ALL} FROM source; SELECT 1"}, "transform.sql", "2 statements"),
    ({"query": "UPDATE source SET n = 1"}, "transform.sql", "UPDATE is a statement"),
    ({"query": f"SELECT {_ALL} FROM source JOIN source b USING (user_id)"}, "transform.sql", "source joined with itself"),
    ({"query": "WITH a AS (SELECT * FROM source) SELECT a.* FROM a LEFT ANTI JOIN a b ON a.n < b.n"}, "transform.sql", "source joined with itself"),
    ({"query": "SELECT s.user_id, s.amount, s._event_ts FROM users LEFT JOIN source s ON s.user_id = id"}, "transform.sql", "write source LEFT JOIN lookup"),
    ({"query": f"SELECT {_ALL} FROM source UNION ALL SELECT 'a', 1, 1, TIMESTAMP '2024-01-01'"}, "transform.sql", "UNION ALL with rows that are not from source"),
    ({"query": "SELECT id AS user_id, 1 AS amount, TIMESTAMP '2024-01-01' AS _event_ts FROM users"}, "transform.sql", "no row of source"),
    ({"query": f"SELECT {_ALL}, reflect('java.lang.System', 'nanoTime') AS r FROM source"}, "transform.sql", "reflect()"),
    ({"query": "SELECT TRANSFORM (user_id, _event_ts) USING 'cat' AS (user_id, _event_ts) FROM source"}, "transform.sql", "TRANSFORM … USING"),
    ({"query": f"SELECT {_ALL} FROM source WHERE day = DATE 'today'"}, "transform.sql", "DATE 'today'"),
    ({"query": f"SELECT {_ALL} FROM source WHERE n >>> 1 > 1 AND day = DATE 'today'"}, "transform.sql", "DATE 'today'"),
    ({"query": "DESCRIBE source"}, "transform.sql", "DESCRIBE is a statement"),
    ({"query": "EXPLAIN SELECT 1"}, "transform.sql", "EXPLAIN is a statement"),
    ({"query": "CREATE TABLE cases_made AS SELECT 1 AS x"}, "transform.sql", "CREATE is a statement"),
    ({"query": "EXECUTE IMMEDIATE 'SELECT * FROM source'"}, "transform.sql", "EXECUTE is a statement"),
    ({"query": "SELECT usr_id AS user_id, amount, _event_ts FROM source"}, "transform.sql", 'did you mean "user_id"?'),
    ({"query": f"SELECT {_ALL} FROM source WHERE upper(stat) = 'a'"}, "transform.sql", 'column "stat" does not exist'),
    ({"query": f"SELECT {_ALL}, s.user_idd AS x FROM source s"}, "transform.sql", 's.user_idd" does not exist; did you mean "user_id"?'),
    ({"query": f"SELECT {_ALL}, u.segmnt FROM source LEFT JOIN users u ON user_id = id"}, "transform.sql", 'did you mean "segment"?'),
    ({"query": f"SELECT {_ALL} FROM source LEFT JOIN users ON user_id = uid"}, "transform.sql", 'column "uid" does not exist'),
    ({"query": f"SELECT {_ALL} FROM source LEFT JOIN user ON user_id = id"}, "transform.sql", 'did you mean "users"?'),
    ({"query": f"SELECT {_ALL} FROM sources"}, "transform.sql", 'did you mean "source"?'),
    ({"query": f"SELECT {_ALL} FROM events"}, "transform.sql", "the name of a source; in the SQL, refer to its rows as \"source\""),
    ({"query": "SELECT source.user_id, amount, _event_ts FROM source s"}, "transform.sql", "source.user_id"),
    ({"query": "SELECT x.* FROM source s"}, "transform.sql", '"x.*"'),
    ({"query": f"SELECT {_ALL} FROM source JOIN (SELECT id AS user_id FROM users) u ON true"}, "transform.sql", "ambiguous"),
    ({"query": f"SELECT {_ALL}, uper(at) AS x FROM source"}, "transform.sql", 'did you mean "upper"?'),
    ({"query": f"SELECT later AS x, n AS later, {_ALL} FROM source"}, "transform.sql", 'column "later"'),
    ({"query": f"SELECT {_ALL}, n AS x FROM source WHERE x > 1"}, "transform.sql", 'column "x"'),
    ({"query": f"WITH a AS (SELECT nope FROM source) SELECT {_ALL} FROM source"}, "transform.sql", 'column "nope"'),
    ({"query": "SELECT user_id, amount FROM source"}, "transform.sql", 'does not select "_event_ts"'),
    ({"query": "SELECT user_id, upper(at), amount FROM source"}, "transform.sql", 'does not select "_event_ts"'),
    ({"query": "SELECT user_id, amount, at AS _event_ts FROM source"}, "transform.sql", '"_event_ts" as string'),
    ({"query": "SELECT user_id, amount, CAST(ts AS DATE) AS _event_ts FROM source"}, "transform.sql", '"_event_ts" as date'),
    ({"query": "SELECT user_id, sum(amount) AS amount, max(_event_ts) AS _event_ts FROM source GROUP BY user_id"}, "transform.sql", "an aggregate"),
    ({"query": "SELECT user_id, amount, first(_event_ts) AS _event_ts FROM source GROUP BY ALL"}, "transform.sql", "an aggregate"),
    ({"query": "SELECT bitmap_and_agg(unhex(user_id)) AS user_id, any_value(_event_ts) AS _event_ts FROM source"}, "transform.sql", "an aggregate"),
    ({"query": f"SELECT {_ALL}, lag(n) AS r FROM source"}, "transform.sql", "a window function"),
    ({"query": f"SELECT {_ALL} FROM (source FULL JOIN users ON user_id = id)"}, "transform.sql", "FULL OUTER JOIN"),
    ({"query": f"SELECT DISTINCT {_ALL} FROM source"}, "transform.sql", "DISTINCT"),
    ({"query": f"SELECT {_ALL} FROM source ORDER BY n LIMIT 3"}, "transform.sql", "LIMIT, ORDER BY"),
    ({"query": f"SELECT {_ALL} FROM source UNION SELECT {_ALL} FROM source"}, "transform.sql", "DISTINCT"),
    ({"query": f"SELECT {_ALL} FROM source EXCEPT SELECT {_ALL} FROM source"}, "transform.sql", "EXCEPT"),
    ({"query": f"SELECT {_ALL}, row_number() OVER (PARTITION BY n ORDER BY n) AS r FROM source"}, "transform.sql", "a window function"),
    ({"query": f"SELECT {_ALL} FROM source WHERE user_id IN (SELECT id FROM users)"}, "transform.sql", "a subquery"),
    ({"query": f"SELECT {_ALL} FROM source WHERE EXISTS (SELECT 1 FROM users WHERE id = user_id)"}, "transform.sql", "a subquery"),
    ({"query": f"SELECT {_ALL}, (SELECT max(score) FROM users) AS s FROM source"}, "transform.sql", "a subquery"),
    ({"query": f"SELECT {_ALL}, rand() AS r FROM source"}, "transform.sql", "rand()"),
    ({"query": f"SELECT {_ALL}, current_timestamp() AS r FROM source"}, "transform.sql", "current_timestamp()"),
    ({"query": f"SELECT {_ALL}, now() AS r, uuid() AS u FROM source"}, "transform.sql", "now(), uuid()"),
    ({"query": f"SELECT {_ALL}, current_date AS r FROM source"}, "transform.sql", "current_date()"),
    ({"query": f"SELECT {_ALL} FROM source RIGHT JOIN users ON user_id = id"}, "transform.sql", "RIGHT OUTER JOIN"),
    ({"query": f"WITH a AS (SELECT DISTINCT * FROM users) SELECT {_ALL} FROM source LEFT JOIN a ON user_id = id"}, "transform.sql", "DISTINCT"),
    ({"query": f"SELECT {_ALL} FROM source TABLESAMPLE (10 PERCENT)"}, "transform.sql", "TABLESAMPLE"),
    ({"keys": '"usr_id"'}, "transform.window.group_by", 'did you mean "user_id"?'),
    ({"keys": '"User_ID"'}, "transform.window.group_by", 'did you mean "user_id"?'),
    ({"query": "SELECT * FROM source", "keys": '"tags"'}, "transform.window.group_by", "array<string>"),
    ({"sql": "", "keys": '"place"'}, "transform.window.group_by", "struct<city:string,zip:int>"),
    ({"aggregation": 'agg = "sum"\ncolumn = "amont"'}, "transform.window.aggregations[1].column", 'did you mean "amount"?'),
    ({"aggregation": 'agg = "sum"\ncolumn = "user_id"'}, "transform.window.aggregations[1].column", "sum needs a number"),
    ({"aggregation": 'agg = "min_by"\ncolumn = "n"\nby = "ts"'}, "transform.window.aggregations[1].by", 'column "ts" does not come out'),
    ({"time": "tss"}, "transform.window.event_time_column", 'did you mean "ts"?'),
    ({"time": "n"}, "transform.window.event_time_unit", "has type bigint; set event_time_unit"),
    ({"time": "amount"}, "transform.window.event_time_column", "has type decimal(10,2), expected a timestamp"),
    ({"time": "CAST(at AS DOUBLE)"}, "transform.window.event_time_column", "has type double"),
    ({"time": "to_timestamp(att)"}, "transform.window.event_time_column", 'did you mean "at"?'),
    ({"time": "to_timestamp(at"}, "transform.window.event_time_column", "unclosed "),
    ({"length": GAP.format("thirty seconds")}, "transform.window.gap_ms", "neither a duration"),
    ({"length": GAP.format("idel_ms"), "query": "SELECT * FROM source"}, "transform.window.gap_ms", 'did you mean "idle_ms"?'),
    ({"length": GAP.format("idle_ms")}, "transform.window.gap_ms", 'column "idle_ms" does not exist'),
    ({"length": GAP.format("flag"), "query": "SELECT * FROM source"}, "transform.window.gap_ms", "has type boolean"),
    (
        {"more_sources": '[[sources]]\nname = "other"\nconnection = "lake"\nquery = "b/*.jsonl"\nformat = "json"\nschema = "user_id INT, amount DECIMAL(10,2), n BIGINT, ts TIMESTAMP"'},
        "transform.window",
        'column "user_id" is string in source "events" and int in source "other"',
    ),
]  # fmt: skip

# SQL that only Spark can parse, and that Spark refuses: (changed places, note of `check` about the unchecked part)
UNREAD: list[tuple[dict[str, str], str]] = [
    ({"query": f"SELECT {_ALL} FORM source"}, 'perhaps because "FORM" should be "FROM"'),
    ({"query": f"SELECT {_ALL} FROM source WEHRE n > 1"}, 'perhaps because "WEHRE" should be "WHERE"'),
    ({"query": "SELECT user_id amount n, _event_ts FROM source"}, "this check cannot parse the SQL"),
    ({"query": f"SELECT {_ALL} FROM source |> LIMIT 3"}, "this check cannot parse the SQL"),
]  # fmt: skip


DDL = {  # results of Spark's parser (tests/spark/test_static_sql_check_against_spark.py)
    "a STRING": {"a": "string"},
    "a: string, b:int": {"a": "string", "b": "int"},
    "a STRING NOT NULL COMMENT 'x, y'": {"a": "string"},
    "`a-b` string, `c``d` INT, 1a LONG": {"a-b": "string", "c`d": "int", "1a": "bigint"},
    "a decimal, b DEC(5), c numeric( 5 , 2 )": {"a": "decimal(10,0)", "b": "decimal(5,0)", "c": "decimal(5,2)"},
    "a byte, b short, c long, d real, e integer": {"a": "tinyint", "b": "smallint", "c": "bigint", "d": "float", "e": "int"},
    "a array<struct<x: int NOT NULL COMMENT 'y', z map<string,array<int>>>>": {"a": "array<struct<x:int,z:map<string,array<int>>>>"},
    "a TIMESTAMP_LTZ, b TIMESTAMP_NTZ, c TIMESTAMP WITHOUT TIME ZONE": {"a": "timestamp", "b": "timestamp_ntz", "c": "timestamp_ntz"},
    "select int, from string, where int": {"select": "int", "from": "string", "where": "int"},
    "a int -- note\n, b /* x */ int": {"a": "int", "b": "int"},
    "a VARIANT, b VOID, c BINARY": {"a": "variant", "b": "void", "c": "binary"},
}  # fmt: skip
NO_DDL = [
    *("a STRNG", "a string,", "a-b string", "a.b string", "ä string", "a decimal(50,2)", "a decimal(5,9)", "a char"),
    *("a NULL", "a ARRAY<STRING", "a array", "a int DEFAULT 3", "a int b string", "a", "a int;", "1 int", "a text"),
    *(
        "a datetime",
        "a int(11)",
        "a bigint unsigned",
        "a TIMESTAMP WITH TIME ZONE",
        "a string(3)",
        "a double precision",
    ),
    *(
        "a json",
        "a 'int'",
        "a int NULL",
        "a bool",
        '"a" int',
        "a map<int>",
        "a struct<int>",
        ", a int",
        "a int,, b int",
    ),
]
