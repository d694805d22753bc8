"""Examples of the pages under docs/stages: configs are valid, and Python code runs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from tests.support.markdown_pages import read_fenced_block

import slackwater as sw

DEDUP = "docs/stages/dedup.md"


def test_config_on_the_dedup_doc_page_is_valid() -> None:
    pipeline = sw.loads(read_fenced_block("toml", page=DEDUP), "dedup.toml")
    assert pipeline.transform.dedup == sw.Dedup(
        keys=["payment_id"], keep="first", within="10m", event_time_column="ts", lateness="1m"
    )


def test_python_code_on_the_dedup_doc_page_runs() -> None:
    exec(read_fenced_block("python", page=DEDUP), {})


OWN = "docs/stages/own-operators.md"


def test_operator_class_on_the_own_operators_doc_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "card_rules", raising=False)
    (tmp_path / "card_rules.py").write_text(read_fenced_block("python", page=OWN))
    pipeline = sw.loads(read_fenced_block("toml", page=OWN), "alerts.toml")
    assert pipeline.transform.keyed is not None
    assert pipeline.transform.keyed.class_ == "card_rules:Fraud"
    exec(read_fenced_block("python", 1, page=OWN), {"sw": sw, "Fraud": importlib.import_module("card_rules").Fraud})
