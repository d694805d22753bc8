"""Names that a system cannot store are refused when the config is read, in one line each."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.config.toml import loads
from slackwater.errors import ConfigError


def build_config_with_names(
    key: str = "k", name: str = "n", target: str = 'connection = "db"\ntable = "out"', state: str = "", schema: str = ""
) -> str:
    def text(value: str) -> str:
        return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\u{ord(c):04x}" for c in value) + '"'

    state_store = (
        f'[state_store]\nkind = "postgres"\nurl = "postgresql://h/d"\n{f"schema = {text(schema)}" if schema else ""}'
        if state
        else ""
    )
    return f"""
name = "p"
[connections]
lake = {{kind = "files"}}
db = {{kind = "postgres", url = "postgresql://h/d"}}
delta = {{kind = "delta"}}
kafka = {{kind = "kafka", bootstrap_servers = "h:9092"}}
[[sources]]
name = "a"
connection = "lake"
query = "in"
format = "json"
[transform.window]
kind = "tumbling"
duration_ms = 1000
event_time_column = "ts"
group_by = [{text(key)}]
max_groups_per_window = 100
aggregations = [{{agg = "count", as = {text(name)}}}]
[target]
{target}
{state_store}
"""


AVRO = 'connection = "kafka"\ntopic = "t"\nvalue_format = "avro"'


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ({"key": "x" * 64}, "transform.window.group_by: found .*, which has 64 bytes, expected a column name of at most 63 bytes, because the target is a Postgres table"),
        ({"key": "€" * 22}, "which has 66 bytes"),
        ({"name": "x" * 64}, r"aggregations\[0\].as: found .*, which has 64 bytes"),
        ({"name": "x" * 62, "state": "db"}, "expected a column name of at most 61 bytes, because the state is in Postgres"),
        ({"key": "a\0b"}, "group_by: found .*; a column name cannot contain U\\+0000"),
        ({"key": "a\0b", "target": 'connection = "lake"\npath = "t"'}, "a column name cannot contain U\\+0000"),
        ({"name": "\0"}, r"aggregations\[0\].as: found .*; a column name cannot contain U\+0000"),
        ({"key": "__h"}, 'group_by: found "__h"; names that begin with __ are reserved'),
        ({"name": "__start"}, r'aggregations\[0\].as: found "__start"; names that begin with __ are reserved'),
        ({"schema": "x" * 64, "state": "db"}, "state_store.schema: the schema name .* has 64 bytes, but Postgres allows at most 63"),
        ({"schema": "pg_mine", "state": "db"}, 'the schema name "pg_mine" begins with "pg_"'),
        ({"target": f'connection = "db"\ntable = "{"t" * 64}"'}, "target.table: the table name .* has 64 bytes"),
        ({"target": 'connection = "db"\ntable = "public."'}, 'the table name is ""'),
        ({"target": 'connection = "db"\ntable = "public.slackwater_state_p"'}, "which is a table name that Slackwater reserves"),
        ({"target": 'connection = "kafka"\ntopic = "a b"'}, "expected a name of at most 249 letters"),
        ({"target": 'connection = "delta"\npath = "t"', "key": "a b"}, "a column name in Delta cannot contain \" \""),
        ({"target": AVRO, "key": "a.b"}, "an Avro field name consists of letters"),
        ({"target": 'connection = "lake"\npath = "a\\u0000"'}, "U\\+0000"),
    ],
)  # fmt: skip
def test_name_that_the_target_or_state_store_cannot_store_is_refused(names: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line) as refused:
        loads(build_config_with_names(**names), env={})
    assert len(refused.value.problems) == 1, refused.value.problems


@pytest.mark.parametrize(
    "names",
    [
        {"key": "x" * 63}, {"key": 'a"b%s\'; --'}, {"key": "token", "state": "db"}, {"name": "100%", "state": "db", "schema": 'odd" %s'},
        {"target": 'connection = "db"\ntable = "My Schema.odd name"'}, {"target": 'connection = "kafka"\ntopic = "a.b_c-9"', "key": "a b"},
        {"target": 'connection = "delta"\npath = "t"', "key": "a.b"}, {"target": 'connection = "lake"\npath = "o"', "key": "x" * 300},
    ],
)  # fmt: skip
def test_valid_column_and_target_names_are_accepted(names: dict[str, Any]) -> None:
    loads(build_config_with_names(**names), env={})
