"""Seeded random SQL texts over one source and one lookup: row-wise queries, other queries, and broken ones.

Half of the names are keywords, which Spark accepts as names unless a setting forbids it.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from slackwater.config.sql import lexer

KEYWORDS = (
    "like when on order limit group end left date values minus window table using then else case where select having by all "
    "any inner outer cross full natural union except intersect with recursive lateral view cluster sort distribute partition "
    "over rows range first last null_ timestamp interval year day_ set show describe explain create drop if exists offset "
    "qualify pivot unpivot sample tablesample semi anti right array map struct current cast trim position overlay"
).split()
COLUMNS = {
    "u": "STRING", "n": "INT", "v": "DOUBLE", "ok": "BOOLEAN", "ts": "TIMESTAMP", "day": "DATE", "tags": "ARRAY<STRING>",
    "m": "MAP<STRING, INT>", "p": "STRUCT<city: STRING, zip: INT>", "like": "INT", "when": "STRING", "on": "BOOLEAN",
    "order": "INT", "limit": "INT", "left": "STRING", "date": "DATE", "minus": "INT", "window": "STRING", "values": "INT",
    "end": "INT", "group": "STRING",
}  # fmt: skip
SCHEMA = ", ".join(f"`{name}` {type_}" for name, type_ in COLUMNS.items())
LOOKUP = "id STRING, c STRING, score DOUBLE"

NUMBERS = (
    "n", "like", "order", "limit", "minus", "values", "end", "n + 1", "n >>> 1", "like * 2", "n DIV 2", "n % 3", "n & 3", "n ^ 2",
    "- n", "length(u)", "CASE WHEN ok THEN n ELSE 0 END", "CASE n WHEN 1 THEN 2 END", "CAST(v AS INT)", "n :: BIGINT", "p.zip",
    "m['a']", "m.a", "size(tags)", "aggregate(tags, 0, (a, t) -> a + length(t))", "extract(YEAR FROM ts)", "year(day)",
    "coalesce(n, 1)", "CAST(NULL AS INT)", "try_cast(u AS INT)", "if(ok, 1, 2)", "datediff(day, DATE '2024-01-01')", "`end` + 1",
    "n << 1", "n >> 1", "~ n", "greatest(n, like)", "position('a' IN u)", "abs(n)", "1e3", "1L", "2BD", "0x1F".replace("0x1F", "X'1F'"),
)  # fmt: skip
TEXTS = (
    "u", "when", "window", "left", "group", "upper(u)", "u || 'x'", "CAST(n AS STRING)", "CAST(u AS STRING COLLATE UTF8_LCASE)",
    "u COLLATE UTF8_LCASE", "date_format(ts, 'yyyy')", "substring(u FROM 1 FOR 2)", "trim(BOTH 'x' FROM u)", "r'a\\b'",
    "concat_ws('-', u, when)", "p.city", "tags[0]", "'a' 'b'", '"a"', "'it''s'", "element_at(tags, 1)", "left(u, 2)", "right(u, 2)",
    "CASE WHEN u IS NULL THEN 'x' ELSE u END", "overlay(u PLACING 'x' FROM 1)", "replace(u, 'a', 'b')", "typeof(n)",
    "transform(tags, t -> t || u)[0]", "filter(tags, (t, i) -> i > 0)[0]", "to_json(p)", "nvl(u, 'x')", "current_user()",
    "'DATE \\'today\\''", "'-- no comment'", "'; no end'", "decode(n, 1, 'a', 'b')", "format_string('%s', u)",
)  # fmt: skip
TRUTHS = (
    "ok", "on", "n > 1", "u LIKE 'a%'", "u RLIKE 'a'", "n IN (1, 2)", "n BETWEEN 1 AND 3", "u IS NOT NULL", "NOT ok", "n <=> 1",
    "exists(tags, t -> t = u)", "u LIKE ANY ('a%', 'b')", "CAST(NULL AS VOID) IS NULL", "u IS DISTINCT FROM 'a'", "n == 1", "! ok",
    "array_contains(tags, 'a')", "n <> 1", "n != 1", "on AND ok", "like > 0 OR values < 3", "ts > '2024-01-01'", "u ILIKE 'A%'",
    "isnull(u)", "(n, like) IN ((1, 2))", "ok IS TRUE", "day = DATE '2024-01-01'", "date < DATE'2025-01-01'",
)  # fmt: skip
TIMES = (
    "ts", "date_trunc('HOUR', ts)", "ts + INTERVAL 1 DAY", "TIMESTAMP '2024-01-01 00:00:00'", "timestampadd(HOUR, 1, ts)",
    "CAST(day AS TIMESTAMP)", "date", "day", "date_add(day, 1)", "to_date('2024-01-01')", "DATE '2024-02-29'", "make_date(2024, 1, n)",
    "timestamp_millis(n)", "ts - INTERVAL '1' HOUR", "dateadd(DAY, 1, day)", "CAST('epoch' AS TIMESTAMP)",
)  # fmt: skip

HOSTILE = (
    "SELECT {e} AS x FROM source a JOIN source b ON a.n = b.n", "SELECT a.u FROM source a, source b", "SELECT a.u FROM source a LEFT ANTI JOIN source b ON a.n < b.n",
    "SELECT a.u FROM source a LEFT SEMI JOIN source b ON a.n = b.n", "SELECT u FROM source NATURAL JOIN source b", "SELECT a.u FROM source a CROSS JOIN source b",
    "WITH t AS (SELECT * FROM source) SELECT a.u FROM t a JOIN t b ON a.n = b.n", "SELECT a.u FROM source a JOIN (SELECT n FROM source WHERE {b}) b ON a.n = b.n",
    "SELECT s.u FROM users LEFT JOIN source s ON s.u = id", "SELECT id FROM users LEFT SEMI JOIN source ON u = id", "SELECT id FROM users LEFT ANTI JOIN source ON u = id",
    "SELECT u FROM source RIGHT JOIN users ON u = id", "SELECT u FROM source FULL OUTER JOIN users ON u = id", "SELECT u FROM users FULL JOIN source ON u = id",
    "SELECT u FROM source UNION ALL SELECT 'c'", "SELECT {e} AS x FROM source UNION ALL VALUES (1)", "SELECT u FROM source UNION ALL SELECT id FROM users", "SELECT u FROM source UNION SELECT u FROM source",
    "SELECT u FROM source INTERSECT SELECT u FROM source", "SELECT u FROM source EXCEPT SELECT id FROM users", "SELECT u FROM source MINUS SELECT id FROM users",
    "SELECT 1 AS x", "VALUES (1), (2)", "SELECT id FROM range(3)", "SELECT * FROM users", "TABLE users", "FROM users", "FROM VALUES (1) AS t(a) SELECT a", "SELECT * FROM (VALUES (1)) AS t(a)",
    "WITH t AS (SELECT * FROM source) SELECT 1 AS x", "SELECT explode(array(1, 2)) AS x", "SELECT u FROM source WHERE n IN (SELECT n FROM source)", "SELECT u FROM source WHERE EXISTS (SELECT 1 FROM users WHERE id = u)",
    "SELECT u, (SELECT max(score) FROM users) AS s FROM source", "SELECT u FROM source, LATERAL (SELECT n + 1 AS x)", "SELECT DISTINCT {e} AS x FROM source", "SELECT u FROM source ORDER BY {e}",
    "SELECT u FROM source SORT BY n", "SELECT u FROM source CLUSTER BY n", "SELECT u FROM source LIMIT 3", "SELECT u FROM source OFFSET 1", "SELECT u FROM source TABLESAMPLE (10 PERCENT)", "SELECT count(*) AS x FROM source",
    "SELECT u, sum(n) AS s FROM source GROUP BY u", "SELECT u, max(n) AS s FROM source GROUP BY ALL", "SELECT u FROM source GROUP BY u HAVING count(*) > 1", "SELECT u, row_number() OVER (PARTITION BY u ORDER BY n) AS r FROM source",
    "SELECT u FROM source QUALIFY row_number() OVER (ORDER BY n) = 1", "SELECT sum(n) OVER w AS s FROM source WINDOW w AS (PARTITION BY u)", "SELECT * FROM source PIVOT (sum(n) FOR u IN ('a', 'b'))",
    "DESCRIBE source", "DESC source", "SHOW TABLES", "SHOW COLUMNS IN source", "EXPLAIN SELECT u FROM source", "CREATE TABLE hostile AS SELECT 1 AS x", "CREATE TEMPORARY VIEW hostile AS SELECT 1 AS x", "DROP VIEW source",
    "INSERT INTO hostile SELECT u FROM source", "FROM source INSERT INTO hostile SELECT u", "SET a = b", "USE default", "CACHE TABLE source", "REFRESH TABLE source", "BEGIN SELECT u FROM source; END", "EXECUTE IMMEDIATE 'SELECT u FROM source'",
    "DELETE FROM source", "UPDATE source SET n = 1", "TRUNCATE TABLE source", "ANALYZE TABLE source COMPUTE STATISTICS", "DECLARE VARIABLE hostile INT", "CREATE TABLE hostile (a INT) USING parquet", "EXPLAIN EXTENDED SELECT 1",
    "SELECT reflect('java.lang.System', 'nanoTime') AS x FROM source", "SELECT java_method('java.util.UUID', 'randomUUID') AS x FROM source", "SELECT TRANSFORM (u) USING 'cat' AS (x) FROM source",
    "SELECT u, rand() AS r FROM source", "SELECT u, randn(1) AS r FROM source", "SELECT uuid() AS x FROM source", "SELECT shuffle(tags) AS x FROM source", "SELECT now() AS x FROM source", "SELECT current_timestamp AS x FROM source",
    "SELECT current_date() AS x FROM source", "SELECT curdate() AS x FROM source", "SELECT unix_timestamp() AS x FROM source", "SELECT localtimestamp() AS x FROM source", "SELECT monotonically_increasing_id() AS x FROM source",
    "SELECT spark_partition_id() AS x FROM source", "SELECT input_file_name() AS x FROM source", "SELECT randstr(3) AS x FROM source", "SELECT uniform(1, 9) AS x FROM source", "SELECT aes_encrypt(u, '0000111122223333') AS x FROM source",
    "SELECT DATE 'today' AS x FROM source", "SELECT u FROM source WHERE ts > TIMESTAMP 'now'", "SELECT u FROM source WHERE day = 'yesterday'", "SELECT CAST('now' AS TIMESTAMP) AS x FROM source", "SELECT to_date('tomorrow') AS x FROM source",
    "SELECT nope FROM source", "SELECT nope({e}) AS x FROM source", "SELECT u FROM nowhere", "SELECT u FROM source; SELECT 1", "SELECT u FROM source WHERE ({b}", "SELECT u FROM source WHERE {b})", "SELECT u FROM source WHERE u = 'a",
    "WITH RECURSIVE t AS (SELECT u, n FROM source UNION ALL SELECT u, n - 1 FROM t WHERE n > 0) SELECT * FROM t", "SELECT u FROM source |> LIMIT 2", "SELECT u FROM source |> ORDER BY u", "FROM source |> AGGREGATE count(*) GROUP BY u",
    "SELECT s.nope FROM source s", "SELECT x.* FROM source s", "SELECT u FROM source s WHERE source.n > 1", "SELECT window(ts, '1 hour') AS w, count(*) AS n FROM source GROUP BY 1", "SELECT u, u FROM source",
    "SELECT FROM FROM source", "SELECT u, FROM source", "", "-- nothing", ";",
)  # fmt: skip


@dataclass(frozen=True)
class SqlText:
    """A SQL text. `family` is plain (row-wise, unless the grammar is wrong), hostile, or broken."""

    family: str
    sql: str


def draw_sql_text(seed: int) -> SqlText:
    """Return the text of a seed."""
    rng = Random(seed)
    kind = rng.choices(("plain", "hostile", "broken"), (60, 25, 15))[0]
    if kind == "hostile":
        sql = rng.choice(HOSTILE).format(e=rng.choice(NUMBERS), b=rng.choice(TRUTHS))
        return SqlText(kind, _vary_layout(rng, sql))
    sql = _draw_plain_query(rng)
    return SqlText(kind, _break_query(rng, sql) if kind == "broken" else _vary_layout(rng, sql))


def _draw_plain_query(rng: Random) -> str:
    form = rng.randrange(12)
    if form == 0:
        return f"FROM source |> WHERE {rng.choice(TRUTHS)} |> EXTEND {rng.choice(NUMBERS)} AS x |> DROP u"
    if form == 1:
        return f"{_draw_select(rng, 'source')} |> WHERE true"
    if form == 2:
        return (
            f"WITH {_draw_name(rng, 't')} AS (SELECT * FROM source WHERE {rng.choice(TRUTHS)}) {_draw_select(rng, 't')}"
        )
    if form == 3:
        items = _draw_select_items(rng)
        other = f"(SELECT * FROM source WHERE {rng.choice(TRUTHS)})"
        return f"SELECT {items} FROM source UNION ALL SELECT {items} FROM {other}"
    if form == 4:
        return rng.choice(
            ("TABLE source", "FROM source", "SELECT * FROM IDENTIFIER('source')", "(SELECT * FROM source)")
        )
    if form == 5:
        return f"SELECT * EXCEPT (tags, m) FROM source WHERE {rng.choice(TRUTHS)}"
    if form == 6:
        return f"FROM source SELECT {_draw_select_items(rng)}"
    return _draw_select(rng, "source")


def _draw_name(rng: Random, plain: str) -> str:
    return rng.choice((plain, f"`{plain}`", plain.upper()))


def _draw_select(rng: Random, table: str) -> str:
    where = f" WHERE {rng.choice(TRUTHS)}" if rng.random() < 0.5 else ""
    hint = rng.choice(("/*+ BROADCAST(users) */ ", "", "", ""))
    tail = rng.choice(("", "", "", " LIMIT ALL", " DISTRIBUTE BY n"))
    after = rng.choice(
        ("", "", "", f" AS {rng.choice(KEYWORDS)}", f" {rng.choice(('s', 'minus', 'q', 'x'))}", " LATERAL VIEW explode(tags) l AS tag",
         " LATERAL VIEW OUTER posexplode(tags) l AS at, tag", " LEFT JOIN users ON u = id", " JOIN users l ON l.id = u AND ok",
         " LEFT SEMI JOIN users ON u = id", " LEFT ANTI JOIN users l ON u = l.id", ", range(2)", " CROSS JOIN users",
         " UNPIVOT (amount FOR what IN (n, like))", ", users WHERE u = id", " LEFT OUTER JOIN (SELECT id, c FROM users WHERE score > 1) l ON l.id = u",
         " JOIN (VALUES ('a'), ('b')) AS l(k) ON k = u", " TIMESTAMP AS x")
    )  # fmt: skip
    if after.startswith(", users WHERE") or "TIMESTAMP" in after:
        where, after = ("", after) if "WHERE" in after else (where, "")
    items = "*" if "UNPIVOT" in after else _draw_select_items(rng)
    return f"SELECT {hint}{items} FROM {table}{after}{where}{tail}"


def _draw_select_items(rng: Random) -> str:
    names = rng.sample([*KEYWORDS, "a", "b", "c1", "x y", "n2"], rng.randint(1, 4))
    items = []
    for name in names:
        value = rng.choice(rng.choice((NUMBERS, TEXTS, TRUTHS, TIMES)))
        quoted = f"`{name}`" if " " in name or rng.random() < 0.3 else name
        items.append(f"{value} AS {quoted}" if " " in name or rng.random() < 0.7 else f"{value} {quoted}")
    return ", ".join(items)


def _vary_layout(rng: Random, sql: str) -> str:
    """Vary the comments, ends, letter case and line breaks of a query without changing its meaning."""
    if rng.random() < 0.2:
        sql += rng.choice(
            (";", " ; ", "; -- the end", " -- the end", "\n/* the; end */", ";;", "; /* a /* nested */ one */")
        )
    if rng.random() < 0.1:
        sql = rng.choice(("-- begin\n", "/* ; */ ", "\n\n", "-- it's\n")) + sql
    if rng.random() < 0.15:
        sql = (
            sql.replace("SELECT", "select").replace("FROM", "From").replace("source", rng.choice(("SOURCE", "source")))
        )
    if rng.random() < 0.15:
        sql = sql.replace(" FROM ", "\nFROM\t", 1)
    return sql


def _break_query(rng: Random, sql: str) -> str:
    """Remove, double, replace or swap one or two words. The text may still be a valid query."""
    try:
        tokens = [t.text for t in lexer.tokenize(sql)]
    except lexer.SqlLexError:
        return sql
    for _ in range(rng.randint(1, 2)):
        index = rng.randrange(len(tokens))
        how = rng.randrange(4)
        if how == 0 and len(tokens) > 1:
            del tokens[index]
        elif how == 1:
            tokens.insert(index, tokens[index])
        elif how == 2:
            tokens[index] = rng.choice([*KEYWORDS, "(", ")", ",", "1", "u", "FROM", "AS"])
        else:
            other = rng.randrange(len(tokens))
            tokens[index], tokens[other] = tokens[other], tokens[index]
    return " ".join(tokens)
