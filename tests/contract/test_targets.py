"""What every target promises: an epoch once, whole, and never an older one."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import polars as pl
import pytest

from slackwater.core.schema import Field
from slackwater.errors import PublishError
from slackwater.targets.base import Table
from slackwater.targets.console import ConsoleTarget
from slackwater.targets.files import FilesTarget

FIELDS = [Field("window_start", "timestamp"), Field("key", "string"), Field("raw", "binary"), Field("n", "bigint")]

TABLE = Table("p", tuple(FIELDS), ("window_start", "key"))


def rows(n: int) -> pl.DataFrame:
    at = dt.datetime(2024, 3, 1, 9, 0, 0, 250_000, dt.UTC)
    return pl.DataFrame(
        {"window_start": [at], "key": [None], "raw": [b"\x01\xff"], "n": [n]}, schema={f.name: f.polars for f in FIELDS}
    )


def published(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir() if p.is_file())


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_an_epoch_is_published_once_and_an_older_one_ignored(tmp_path: Path, form: str) -> None:
    target = FilesTarget(tmp_path, form, TABLE)
    target.publish(3, rows(1))
    first = published(tmp_path)
    target.publish(3, rows(2))
    target.publish(2, rows(2))
    assert published(tmp_path) == first
    FilesTarget(tmp_path, form, TABLE).publish(4, rows(2))
    assert target.last_epoch() == 4
    assert len(published(tmp_path)) == 2
    FilesTarget(tmp_path, form, Table("other", tuple(FIELDS), ("window_start", "key"))).publish(0, rows(9))
    assert len(published(tmp_path)) == 3


def test_parquet_has_the_declared_types(tmp_path: Path) -> None:
    FilesTarget(tmp_path, "parquet", TABLE).publish(0, rows(1))
    assert pl.read_parquet(tmp_path / "p-000000000.parquet").equals(rows(1))


def test_text_formats_write_times_as_iso_and_bytes_as_hexadecimal(tmp_path: Path) -> None:
    FilesTarget(tmp_path, "json", TABLE).publish(0, rows(1))
    (line,) = (tmp_path / "p-000000000.jsonl").read_text().splitlines()
    expected = {"window_start": "2024-03-01T09:00:00.250000Z", "key": None, "raw": "01ff", "n": 1}
    assert json.loads(line) == expected
    FilesTarget(tmp_path / "c", "csv", TABLE).publish(0, rows(1))
    assert (tmp_path / "c" / "p-000000000.csv").read_text() == (
        "window_start,key,raw,n\n2024-03-01T09:00:00.250000Z,,01ff,1\n"
    )


def test_a_directory_that_does_not_take_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PublishError, match=r"did not take epoch 0 .* the next start publishes it"):
        FilesTarget(tmp_path / "file", "csv", TABLE).publish(0, rows(1))


def test_the_console_shows_rows_and_says_that_it_is_at_least_once(capsys: pytest.CaptureFixture[str]) -> None:
    ConsoleTarget().publish(7, rows(5))
    assert "epoch 7: 1 row\n" in capsys.readouterr().out
    assert ConsoleTarget.guarantee == "at least once"
