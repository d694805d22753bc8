"""Fuzz conditions from a grammar and damaged conditions: each is refused or selects the same rows as Polars alone."""

from __future__ import annotations

import datetime as dt
import random

import polars as pl
from tests.laws.fuzzers import hostile_texts as words

from slackwater.errors import StartError
from slackwater.query.where_condition import filter_frame, parse_condition

FRAME = pl.DataFrame(
    {
        "k": ["a", "B", None, "a'b", "", "ä"],
        "n": [1, -2, 3, None, 2**62, 0],
        "x": [1.5, float("nan"), float("inf"), None, -0.0, 1e300],
        "yes": [True, False, None, True, True, False],
        "window_start": [dt.datetime(2024, 1, 1) + dt.timedelta(hours=h) for h in range(6)],
        "select": [1, 2, 3, 4, 5, 6],
    }
)
ATOMS = (
    "n",
    "x",
    "k",
    "yes",
    '"select"',
    "1",
    "0",
    "-1",
    "2.5",
    "'a'",
    "''",
    "'a''b'",
    "true",
    "NULL",
    "window_start",
    "nn",
    "*",
    "9" * 30,
)
BINARY = (
    "AND",
    "OR",
    "=",
    "<>",
    "<",
    ">=",
    "+",
    "-",
    "*",
    "/",
    "%",
    "LIKE",
    "ILIKE",
    "IS NOT",
    "IS",
    "||",
    "~",
    "<=>",
    ",",
    "^",
    "->",
)
FORMS = (
    *(
        "({})",
        "NOT {}",
        "-{}",
        "({}) IS NULL",
        "({}) IN (1, 2)",
        "({}) NOT IN ('a')",
        "({}) BETWEEN 0 AND 5",
        "CAST({} AS DOUBLE)",
    ),
    *(
        "({})::text",
        "CAST({} AS INT)",
        "CASE WHEN {} THEN 1 ELSE 0 END",
        "ABS({})",
        "LENGTH({})",
        "LOWER({})",
        "COALESCE({}, 1)",
    ),
    *(
        "ROUND({}, 2)",
        "ROUND({}, 2000000000)",
        "LPAD({}, 2000000000, 'y')",
        "REPEAT({}, 2000000000)",
        "COUNT({})",
        "({}, {})",
    ),
    *(
        "NULLIF({}, 0)",
        "STARTS_WITH({}, 'a')",
        "EXISTS (SELECT {})",
        "ARRAY[{}]",
        "INTERVAL {}",
        "{} OVER ()",
        "CEIL({})",
        "FLOOR({})",
    ),
)


def draw_untyped_condition(rng: random.Random, depth: int) -> str:
    if depth <= 0 or rng.random() < 0.15:
        return rng.choice(ATOMS)
    if rng.random() < 0.5:
        return f"{draw_untyped_condition(rng, depth - 1)} {rng.choice(BINARY)} {draw_untyped_condition(rng, depth - 1)}"
    return rng.choice(FORMS).replace("{}", draw_untyped_condition(rng, depth - 1))


def draw_typed_condition(rng: random.Random) -> str:
    """Return a condition whose parts have compatible types."""
    numbers = (
        "n",
        "x",
        "1",
        "0",
        "ABS(n)",
        "n + 1",
        "-n",
        "x * 2",
        "COALESCE(n, 0)",
        "ROUND(x, 1)",
        "LENGTH(k)",
        '"select" % 2',
        "CAST(n AS DOUBLE)",
    )
    tests = (
        lambda: f"{rng.choice(numbers)} {rng.choice(['=', '<>', '<', '<=', '>', '>='])} {rng.choice(numbers)}",
        lambda: f"k {rng.choice(['=', 'LIKE', 'ILIKE', '<'])} '{rng.choice(['a', '%', 'A%', '_', ''])}'",
        lambda: rng.choice(
            ["yes", "k IS NULL", "n IN (1, 3)", "n NOT IN (1)", "STARTS_WITH(k, 'a')", "n BETWEEN 0 AND 3"]
        ),
        lambda: f"CASE WHEN {rng.choice(numbers)} > 1 THEN yes ELSE false END",
    )
    parts = [f"{rng.choice(['', 'NOT '])}({rng.choice(tests)()})" for _ in range(rng.choice([1, 1, 2, 4, 15]))]
    return "".join(f"{' ' * bool(i)}{rng.choice(['AND ', 'OR ']) if i else ''}{part}" for i, part in enumerate(parts))


def draw_chained_condition(rng: random.Random) -> str:
    """Return a condition that repeats one part many times, in a chain or nested."""
    count = rng.choice([10, 29, 31, 100, 199, 1000])
    if rng.random() < 0.5:
        return f" {rng.choice(BINARY)} ".join([rng.choice(ATOMS)] * count)
    form, expression = rng.choice(FORMS[:16]), "n"
    for _ in range(min(count, 200)):
        expression = form.replace("{}", expression, 1).replace("{}", "1")
    return expression + rng.choice(["", " > 1", " AND yes"])


def check_case(rng: random.Random) -> str:
    draw = rng.random()
    where = (
        draw_untyped_condition(rng, rng.choice([1, 2, 2, 3, 5]))
        if draw < 0.6
        else draw_chained_condition(rng)
        if draw < 0.75
        else ""
    )
    if draw < 0.3:
        where = draw_typed_condition(rng)
    if draw >= 0.75:
        where = words.damage_text(rng, draw_untyped_condition(rng, 3))
    try:
        filtered = pl.concat(filter_frame(FRAME, parse_condition(where, FRAME.columns)))
    except StartError as error:
        words.assert_slackwater_error(error)
        assert str(error).startswith("where: "), error
        return "refused"
    try:
        alone = FRAME.filter(pl.sql_expr(where))
    except pl.exceptions.PolarsError:
        return "answered, and not by Polars alone"
    assert filtered.equals(alone), f"{where!r}: {filtered.height} rows, Polars alone finds {alone.height}"
    return "answered"
