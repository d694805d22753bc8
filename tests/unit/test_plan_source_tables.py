"""`slackwater plan` reads the source tables: added columns, changes that stop a start, and unreadable tables."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.delta_and_iceberg_source_tables import FORMATS, build_numbered_row
from tests.support.why_command_fixtures import SESSION, STORY, run_toml_pipeline

from slackwater.cli.main import main
from slackwater.connectors.connector import connector_for
from slackwater.runner import source_schema_changes
from slackwater.state.commit import SourceRecord
from slackwater.storage.arrow_files import file_checksum

Say = Callable[..., tuple[int, list[str]]]
WEB = SESSION[SESSION.index('[[sources]]\nname = "web"') : SESSION.index('[[sources]]\nname = "app"')]


@pytest.fixture(params=FORMATS)
def table(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    created = FORMATS[request.param](tmp_path)
    created.append_rows([build_numbered_row(0), build_numbered_row(1)])
    return created


@pytest.fixture
def run_plan(table: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """Run `slackwater plan` for a pipeline that has read the first table version. `keys` are extra source keys."""
    run_toml_pipeline(SESSION, STORY)
    store_table_as_read(table)
    if table.kind == "iceberg":
        options = ", ".join(f'{name} = "{value}"' for name, value in table.lake.options.items())
        connection, query = f'kind = "iceberg"\ncatalog = "sql"\noptions = {{ {options} }}', "shop.events"
    else:
        connection, query = 'kind = "delta"', table.path

    def command(keys: str = "", *arguments: str) -> tuple[int, list[str]]:
        source = (
            f'[connections.warm]\n{connection}\n[[sources]]\nname = "web"\nconnection = "warm"\nquery = "{query}"\n'
        )
        Path("p.toml").write_text(SESSION.replace(WEB, f'{source}lateness_ms = "30s"\n{keys}\n'))
        monkeypatch.setattr(sys, "argv", ["slackwater", "plan", "p.toml", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        output = capsys.readouterr()
        return int(ended.value.code or 0), (output.out + output.err).splitlines()

    return command


def store_table_as_read(table: Any) -> None:
    """Store a source record in the state, as if a run had read this table."""
    spec = table.source()
    source = connector_for(spec.connection).source(None, None, spec, None)  # type: ignore[arg-type]  # Spark reads the data only
    record = SourceRecord(offsets=source.snapshot.offsets, columns=source.schema.json())
    rewrite_commits(
        lambda content: content["sources"].__setitem__("web", json.loads(record.model_dump_json(exclude_none=True)))
    )


def rewrite_commits(change: Callable[[dict[str, Any]], Any]) -> None:
    """Change every commit of the state and write its checksum again."""
    for file in Path("state/law/manifests").glob("*.json"):
        text, seal = file.read_text().splitlines()
        content = json.loads(text)
        change(content)
        text = json.dumps(content)
        _, space, writer = seal.partition(" ")
        file.write_text(f"{text}\n{file_checksum(text.encode())}{space}{writer}\n")


def select_table_lines(lines: list[str]) -> list[str]:
    """Return the lines about the table and the summary."""
    return [line for line in lines if "columns" in line or "unknown" in line or line.startswith("law: ")]


def test_plan_reports_added_columns_and_the_effect_of_the_next_start(table: Any, run_plan: Say) -> None:
    assert select_table_lines(run_plan('schema_changes = "add"')[1])[:-1] == [], "nothing came yet"
    table.add_column("weight")
    code, lines = run_plan('schema_changes = "add"')
    assert code == 0
    line, _ = select_table_lines(lines)
    assert line == (
        'compatible  source "web", columns: state has 7 columns, the table has 8 columns, new: "weight" (bigint): the next start adds it, '
        "with NULL in earlier rows; SQL can name it, and SELECT * includes it"
    )
    (change,) = [
        c for c in json.loads(run_plan('schema_changes = "add"', "--json")[1][0])["changes"] if "columns" in c["what"]
    ]
    assert (change["state"], change["verdict"]) == ("7 columns", "compatible")
    assert change["config"] == '8 columns, new: "weight" (bigint)'
    table.add_column("height")
    assert (
        'new: "weight" (bigint), "height" (bigint): the next start adds them'
        in select_table_lines(run_plan('schema_changes = "add"')[1])[0]
    )
    assert select_table_lines(run_plan('schema_changes = "ignore"')[1])[:-1] == [], "they are not read"


def test_plan_reports_new_columns_that_a_start_refuses(table: Any, run_plan: Say) -> None:
    table.add_column("weight")
    code, lines = run_plan()
    assert code == 1
    assert re.fullmatch(
        r'law: state in epoch 2: source "web": .* table .*: new columns in the versions since the first start: "weight" \(bigint\); '
        r'set schema_changes to add them \("add"\) or to leave them out \("ignore"\)',
        lines[-1],
    )
    report = json.loads(run_plan("", "--json")[1][0])
    assert (report["startable"], report["unknown"]) == (False, [])
    assert lines[-1] == f"law: {report['sum']}"


def test_plan_refuses_a_recreated_table(table: Any, run_plan: Say, tmp_path: Path) -> None:
    rewrite_commits(lambda content: content["sources"]["web"]["offsets"].__setitem__("table", "another"))
    code, lines = run_plan()
    assert code == 1
    assert "was created again after it had been read up to" in lines[-1]


def test_plan_reports_an_unreadable_table_as_unknown_on_one_line(
    table: Any, run_plan: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code is 0, because `plan` cannot know that a start fails. A hanging table is unknown after a timeout."""

    def away(*arguments: Any) -> Any:
        raise OSError("connection refused")

    log = type(connector_for(table.source().connection).log(table.source()))  # type: ignore[attr-defined]
    monkeypatch.setattr(log, "snapshot", away)
    code, lines = run_plan()
    assert code == 0
    (line,) = [text for text in lines if text.startswith("unknown")]
    assert re.fullmatch(
        r'unknown     source "web": .* table .* cannot be read \(.*connection refused.*\); could not determine what changed',
        line,
    )
    assert len(json.loads(run_plan("", "--json")[1][0])["unknown"]) == 1
    release = threading.Event()
    monkeypatch.setattr(log, "snapshot", lambda self: release.wait())
    monkeypatch.setattr(source_schema_changes, "LONGEST_S", 0.05)
    code, lines = run_plan()
    release.set()
    assert code == 0
    assert 'unknown     source "web" did not answer within 0.05 s; changes in its table are unknown' in lines


def test_plan_refuses_a_deleted_table(table: Any, run_plan: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    if table.kind == "delta":
        Path(table.path).rename("elsewhere")
    else:
        table.lake.open_client().catalog.drop_table("shop.events")
    code, lines = run_plan()
    assert code == 1
    assert 'source "web": ' in lines[-1]
    assert any(text in lines[-1] for text in ("is not", "does not exist")), "in the directory, or in the catalog"
