"""The output of `check` and `explain` for a join, and the effects of the join settings in other packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.support.single_stage_components import build_single_stage_commit

from slackwater.cli.main import main
from slackwater.config import toml
from slackwater.engine import next_commit
from slackwater.errors import StartError
from slackwater.runner.replay_runner import replay_dead_letters
from slackwater.state.commit import Commit
from slackwater.watermark import SourceClock

CONFIG = """name = "paid"
[connections.bus]
kind = "kafka"
bootstrap_servers = "b:9092"
[connections.base]
kind = "postgres"
url = "postgresql://h/d"
[[sources]]
name = "orders"
connection = "bus"
query = "orders"
[[sources]]
name = "payments"
connection = "bus"
query = "payments"
lateness_ms = "30s"
[transform.join]
kind = "left_outer"
left_source = "orders"
right_source = "payments"
left_keys = ["id", "shop"]
right_keys = ["order", "shop"]
lower_ms = "-1m"
upper_ms = "5m"
lateness_ms = "10s"
late_data = "reopen"
allowed_lateness_ms = "1h"
right_sql = "SELECT *  FROM source"
[target]
connection = "base"
table = "paid"
[state_store]
kind = "postgres"
url = "postgresql://h/d"
"""


@pytest.fixture
def run_config_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> object:
    """Return a function that runs a command on a config and returns the printed lines."""
    monkeypatch.chdir(tmp_path)

    def command(name: str, config: str = CONFIG) -> list[str]:
        Path("p.toml").write_text(config)
        monkeypatch.setattr(sys, "argv", ["slackwater", name, "p.toml"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return capsys.readouterr().out.splitlines()

    return command


def test_check_describes_the_join(run_config_command) -> None:  # type: ignore[no-untyped-def]
    state = 'state in Postgres, schema "public"'
    assert run_config_command("check") == [
        f'p.toml: ok — left outer join of "orders" and "payments" on 2 keys, {state}',
        "p.toml: not checked: sources[0].schema: none is declared, so the columns are known only when the first rows are read",
        "p.toml: not checked: sources[1].schema: none is declared, so the columns are known only when the first rows are read",
    ]
    memory = CONFIG[: CONFIG.index("[state_store]")] + '[state_store]\nkind = "in_memory"\n'
    first, second, *_ = run_config_command("check", memory.replace('"left_outer"', '"inner"'))
    assert first.startswith('p.toml: ok — inner join of "orders" and "payments" on 2 keys')
    assert second.startswith("p.toml: note: STATE IS IN MEMORY")


def test_explain_describes_each_stage_of_the_join(run_config_command) -> None:  # type: ignore[no-untyped-def]
    lines = run_config_command("explain")
    stages = [line[2:13].strip() for line in lines if line.startswith("  ") and line[2] != " "]
    assert stages == [
        *("read", "event time", "sql", "shuffle", "step", "emit", "commit", "publish"),
        *("delivery", "state"),
    ]
    for line in (
        "  sql        Spark   left: no SQL: rows pass unchanged",
        "                     right: SELECT * FROM source",
        "  shuffle    Spark   both sides by hash of their keys: id, shop and order, shop",
        '  step       shards  left outer join of "orders" and "payments": left.id = right.order and left.shop = right.shop '
        "and -1m <= right.ts - left.ts <= 5m",
        "                     late rows: joined up to 1h behind the watermark, then drop",
        "                     at most 100,000 rows per key and side, then fail",
        "  emit       shards  each pair once, in the epoch that reads its second row",
        "                     left rows without a partner are emitted when they leave the state",
        "                     _event_ts = the later of the two",
        "  publish    driver  insert into Postgres table paid, within the commit",
        "  delivery   exactly once: state, offsets and output are one transaction",
        "  state      left rows are kept until the watermark is 65m past them; the watermark trails the newest events by 30s",
        "             right rows are kept until the watermark is 61m past them; the watermark trails the newest events by 30s",
    ):
        assert line in lines


def test_explain_shows_the_late_row_policies_of_the_join(run_config_command) -> None:  # type: ignore[no-untyped-def]
    letters = '[dead_letter]\nconnection = "base"\ntable = "letters"\n[target]'
    lines = run_config_command("explain", CONFIG.replace("[target]", letters))
    assert (
        "                     late rows: joined up to 1h behind the watermark, then dlq, one dead letter per row"
        in lines
    )
    assert "                     dead letters: insert into Postgres table letters" in lines
    plain = CONFIG.replace('late_data = "reopen"\nallowed_lateness_ms = "1h"\n', 'event_time = "left"\n')
    lines = run_config_command(
        "explain", plain.replace('"left_outer"', '"full"').replace('"10s"', "0").replace('"30s"', "0")
    )
    assert "                     late rows: drop" in lines
    assert "                     left and right rows without a partner are emitted when they leave the state" in lines
    assert "                     _event_ts = that of the left row" in lines
    assert lines[-2:] == [
        "  state      left rows are kept until the watermark is 5m past them",
        "             right rows are kept until the watermark is 1m past them",
    ]
    assert not any(line.startswith("  emit") and "without" in line for line in run_config_command("explain", plain))


@pytest.mark.parametrize("mode", ["", 'mode = "append"\n'])
def test_explain_shows_append_mode_for_a_delta_target(run_config_command, mode: str) -> None:  # type: ignore[no-untyped-def]
    target = f'[connections.lake]\nkind = "delta"\n[target]\nconnection = "lake"\npath = "out"\n{mode}'
    config = CONFIG.replace('[target]\nconnection = "base"\ntable = "paid"\n', target)
    assert f'  publish    driver  Delta table "{Path.cwd() / "out"}", append' in run_config_command("explain", config)


def join_commit(**more: object) -> Commit:
    return build_single_stage_commit(3, **({"pipeline": "paid", "committed_us": 0} | more))


def test_each_join_side_delays_the_watermark_by_the_source_lateness() -> None:
    """Allowed lateness retains rows but does not delay the watermark."""
    clocks = next_commit.input_clocks(toml.loads(CONFIG), join_commit())
    assert {name: (type(c), c.lateness_us, c.idleness_us) for name, c in clocks.items()} == {
        "orders": (SourceClock, 10_000_000, 60_000_000),
        "payments": (SourceClock, 30_000_000, 60_000_000),
    }


def test_replay_of_join_dead_letters_is_rejected() -> None:
    with pytest.raises(StartError, match="dead letters of a join cannot be replayed, because joined rows are final"):
        replay_dead_letters(toml.loads(CONFIG), lambda letters: letters)
