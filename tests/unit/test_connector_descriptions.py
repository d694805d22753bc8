"""The description of each connector agrees with the connection class and with the Connector class."""

from __future__ import annotations

import subprocess
import sys

import pytest

from slackwater.config.connector_description import CONNECTORS, metadata_columns
from slackwater.config.source import Source
from slackwater.config.target import Target
from slackwater.connectors.connector import Connector
from slackwater.core.connector_registry import load_object


@pytest.mark.parametrize("kind", CONNECTORS)
def test_connection_and_connector_classes_agree_on_reading_and_writing(kind: str) -> None:
    connection, system = CONNECTORS[kind].connection, load_object(CONNECTORS[kind].connector)
    assert (system.source is not Connector.source) == connection.READS
    for method in ("target", "result_reader"):
        assert (getattr(system, method) is not getattr(Connector, method)) == connection.WRITES, method


@pytest.mark.parametrize("kind", CONNECTORS)
def test_connector_description_agrees_with_its_connection_class(kind: str) -> None:
    info, connection = CONNECTORS[kind], CONNECTORS[kind].connection
    assert info.kind == kind == connection.model_fields["kind"].default
    source = Source.model_construct(name="s", query="q", format="json")
    target = Target.model_construct(path="/p", table="t", topic="o")
    assert ("q" in info.plan_text(source)) and ("q" in info.short_name(source))
    assert bool(info.metadata_columns) == info.has_timestamp, "anyone who adds columns adds the time of the record"
    assert connection.READS or not (info.metadata_columns or info.keeps_history or info.start.default)
    if connection.WRITES and kind != "console":
        assert any(word in info.location_text(target) for word in ("/p", "t", "o"))
        assert info.location_text(target).split()[-1].strip('"') in info.write_text(target, True, False)


def test_dataframe_source_does_not_have_metadata_columns() -> None:
    assert metadata_columns(None) == ()


def test_connector_descriptions_do_not_import_client_libraries() -> None:
    heavy = ("pyspark", "polars", "confluent_kafka", "psycopg", "deltalake", "pyiceberg")
    code = f"import sys; from slackwater.config.connector_description import CONNECTORS; dict(CONNECTORS); print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
