"""Connectors in user packages: entry points, `check`, `explain`, the JSON schema and stored offsets.

`tests/e2e/test_user_connector_kill.py` runs such a connector.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.markdown_pages import ROOT
from tests.support.toy_packages import CONFIG, SOURCES, install_journal_connector, write_package_metadata

STATE = '{"#connector": "journal", "line": 7}'


@pytest.fixture
def connector_folder(tmp_path: Path) -> Path:
    install_journal_connector(tmp_path / "site")
    return tmp_path / "site"


def run_python(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(site)])}
    return subprocess.run(
        [sys.executable, *arguments], cwd=site.parent, env=environment, text=True, capture_output=True, check=False
    )


def run_slackwater(site: Path, *arguments: str) -> str:
    """Return the output of a command with any exit code."""
    done = run_python(site, "-m", "slackwater.cli.main", *arguments)
    return done.stdout + done.stderr


def run_check_command(site: Path, old: str = "", new: str = "") -> list[str]:
    assert old in CONFIG
    (site.parent / "totals.toml").write_text(CONFIG.replace(old, new, 1) if old else CONFIG)
    return run_slackwater(site, "check", "totals.toml").splitlines()


def test_installed_connector_is_checked_and_explained(connector_folder: Path) -> None:
    assert run_check_command(connector_folder)[0].startswith("totals.toml: ok — tumbling window over 1 source")
    explained = run_slackwater(connector_folder, "explain", "totals.toml")
    assert f'"orders": journal {connector_folder.parent}/orders.journal, at most 20 per epoch' in explained
    assert f'journal "{connector_folder.parent}/out/totals.journal", one entry per epoch' in explained
    assert "exactly once: the target keeps the last epoch with its rows" in explained


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('encoding = "utf-8"', "", 'connections.log.encoding: missing; as in "utf-8"'),
        ('topic_prefix = "order"', "topic_prefix = 1", "sources[0].topic_prefix: found 1, expected a non-empty string"),
        ('topic_prefix = "order"', "topic_prefx = 1", 'sources[0].topic_prefx: unknown key'),
        ('topic_prefix = "order"', 'format = "csv"', 'sources[0].format: applies only to connections of kind "files", but'),
        ('path = "out/totals.journal"', "", "target.path: missing; a journal target needs a file"),
        ("sync = true", 'sync = "yes"', 'target.sync: found "yes", expected true or false'),
        ("sync = true", 'topic = "t"', 'target.topic: applies only to connections of kind "kafka", but this one is "journal"'),
        ('kind = "journal"', 'kind = "jurnal"', 'connections.log.kind: found "jurnal", which is not a kind of connection; did you mean "journal"?'),
        ('encoding = "utf-8"', 'encoding = "utf-9"', 'connections.log.encoding: found "utf-9", expected "utf-8" or "latin-1"'),
    ],
)  # fmt: skip
def test_invalid_connector_key_is_reported_with_a_one_line_error(
    connector_folder: Path, old: str, new: str, line: str
) -> None:
    lines = run_check_command(connector_folder, old, new)
    assert lines[0].startswith(f"totals.toml: {line}"), lines
    assert lines[-1] == "1 problem", lines


def test_connector_keys_are_refused_on_other_connectors(connector_folder: Path) -> None:
    files = '[connections.lake]\nkind = "files"\n\n[[sources]]\nname = "orders"\nconnection = "lake"\nformat = "json"\n'
    lines = run_check_command(connector_folder, '[[sources]]\nname = "orders"\nconnection = "log"\n', files)
    wrong = 'sources[0].topic_prefix: applies only to connections of kind "journal", but this one is "files"; remove it'
    assert f"totals.toml: {wrong}" in lines


def test_unknown_connection_kind_is_reported_with_all_kinds(connector_folder: Path) -> None:
    (line, *_) = run_check_command(connector_folder, 'kind = "journal"', 'kind = "teleprinter"')
    assert line.startswith('totals.toml: connections.log.kind: found "teleprinter"')
    assert line.endswith("iceberg, journal, kafka, kinesis, postgres, pubsub, rabbitmq")


def test_connector_import_failure_is_reported_with_a_one_line_error(connector_folder: Path) -> None:
    (connector_folder / "journal_connector" / "offsets.py").write_text("import no_such_module\n")
    assert run_check_command(connector_folder)[0] == (
        'totals.toml: connections.log.kind: connector "journal" of package journal-connector cannot be imported from '
        "journal_connector.description:JOURNAL (ModuleNotFoundError: No module named 'no_such_module'); repair the "
        "package, or uninstall it"
    )


def test_entry_point_to_a_wrong_object_is_reported_with_a_one_line_error(connector_folder: Path) -> None:
    write_package_metadata(connector_folder, "tape", "tape = journal_connector.description:JOURNAL")
    assert run_check_command(connector_folder, 'kind = "journal"', 'kind = "tape"')[0] == (
        'totals.toml: connections.log.kind: connector "tape" of package tape: journal_connector.description:JOURNAL is not '
        'a ConnectorDescription with kind = "tape"; repair the package, or uninstall it'
    )


def test_two_packages_with_the_same_kind_are_reported_with_a_one_line_error(connector_folder: Path) -> None:
    write_package_metadata(connector_folder, "other-journal", "journal = journal_connector.description:JOURNAL")
    assert run_check_command(connector_folder)[0] == (
        'totals.toml: connections.log.kind: connector "journal" is registered by 2 packages (journal-connector, '
        "other-journal); uninstall all but one"
    )


def test_broken_package_does_not_affect_other_kinds(connector_folder: Path) -> None:
    write_package_metadata(connector_folder, "broken", "broken = no_such_module:X")
    assert run_check_command(connector_folder)[0].startswith("totals.toml: ok")


def test_json_schema_contains_the_connector_keys(connector_folder: Path) -> None:
    schema = json.loads(run_slackwater(connector_folder, "schema"))
    tables = schema["$defs"]
    assert "journal" in json.dumps(tables["connection"]["properties"]["kind"])
    assert tables["connection"]["properties"]["encoding"]["description"].startswith("How the text of a journal")
    skip_lines = tables["source"]["properties"]["skip_lines"]
    assert skip_lines["description"] == "The number of lines at the start that are not read."
    assert (skip_lines["type"], skip_lines["minimum"], skip_lines["default"]) == ("integer", 0, 0)
    assert tables["target"]["properties"]["sync"]["default"] is True


def test_parsing_a_connection_imports_only_the_connector_description(connector_folder: Path) -> None:
    code = """
import sys
import slackwater as sw
sw.FilesConnection()
print([m for m in sys.modules if m.startswith("journal_connector")])
from slackwater.config.connection import parse_connection
connection = parse_connection({"kind": "journal", "encoding": "utf-8"})
print(connection.encoding, [m for m in ("journal_connector.connector", "pyspark", "polars") if m in sys.modules])
"""
    done = run_python(connector_folder, "-c", code)
    assert done.stdout.splitlines() == ["[]", "utf-8 []"], done.stderr


def test_connector_keys_round_trip_through_python_and_toml(connector_folder: Path) -> None:
    code = """
import slackwater as sw
from slackwater.config import toml
pipeline = toml.loads(open("totals.toml").read())
print(dict(pipeline.sources[0].connector_keys), dict(pipeline.target.connector_keys))
assert toml.loads(sw.to_toml(pipeline)) == pipeline
print(sw.Source(connection="log", query="x", schema="a INT", skip_lines=3).connector_keys)
"""
    run_check_command(connector_folder)
    done = run_python(connector_folder, "-c", code)
    assert done.stdout.splitlines() == ["{'topic_prefix': 'order'} {'sync': True}", "{'skip_lines': 3}"], done.stderr


def test_stored_offsets_need_the_connector_package(connector_folder: Path) -> None:
    code = f"""
import slackwater, json
from slackwater.core.offsets import offsets_to_json, parse_offsets
offsets = parse_offsets({STATE})
print(offsets.describe(), json.dumps(offsets_to_json(offsets)))
"""
    assert run_python(connector_folder, "-c", code).stdout == f"after line 7 {STATE}\n"
    empty = connector_folder.parent / "empty" / "site"
    empty.mkdir(parents=True)
    assert (
        "offsets of the connector 'journal' cannot be read: no installed package has it"
        in run_python(empty, "-c", code).stderr
    )


def test_connector_implementation_can_be_imported(connector_folder: Path) -> None:
    done = run_python(connector_folder, "-c", "import journal_connector.connector; print('ok')")
    assert done.stdout == "ok\n", done.stderr


def test_documentation_page_shows_the_connector_package() -> None:
    text = (ROOT / "docs" / "own-connector.md").read_text()
    blocks = re.findall(r"^```python\n# journal_connector/(\w+\.py)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 7
    for file, code in blocks:
        assert code in (SOURCES / "journal_connector" / file).read_text(), file
    assert f"```toml\n{CONFIG}```" in text
