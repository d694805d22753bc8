"""Test the work of a Spark Python worker around a task, in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys

IN_A_WORKER = """
import gc, json, sys, tempfile, zipfile, zipimport
import pyarrow as pa
from slackwater.errors import EpochError
from slackwater.spark.worker_tasks import run_partition

class Cycle: pass

def task(table):
    cycle = Cycle()
    cycle.own = cycle  # garbage of an epoch: a collector has to find it
    return json.dumps({"names": table.column_names, "rows": table.num_rows})

def fails(table):
    raise EpochError("no")

batch = pa.RecordBatch.from_arrays([pa.nulls(3, pa.int64())], ["c0"])
archive = tempfile.mkdtemp() + "/a.zip"  # as Spark's own
with zipfile.ZipFile(archive, "w") as made:
    made.writestr("first_of_zip.py", "x = 1")
    made.writestr("second_of_zip.py", "x = 2")
sys.path.insert(0, archive)
import first_of_zip

told = [b.to_pylist() for _ in range(9) for b in run_partition(["k"], task, iter([batch, batch]))]
told += [b.to_pylist() for b in run_partition(["k"], fails, iter([batch]))]
assert list(run_partition(["k"], task, iter([]))) == []
looked_at, kept = len(gc.get_objects()), gc.get_freeze_count()
zips = sum(isinstance(i, zipimport.zipimporter) for i in sys.path_importer_cache.values())
import second_of_zip

gc.collect()
left = sum(type(o) is Cycle for o in gc.get_objects())
print(json.dumps({"told": told, "kept": kept, "looked_at": looked_at, "left": left, "zips": zips, "pandas": "pandas" in sys.modules}))
"""


def test_worker_imports_no_pandas_and_garbage_collection_skips_modules() -> None:
    measured = json.loads(subprocess.run([sys.executable, "-c", IN_A_WORKER], capture_output=True, check=True).stdout)
    task_reports = [{"report": json.dumps({"names": ["k"], "rows": 6}), "error": "", "rows": 6, "bytes": 50}]
    three = {"rows": 3, "bytes": 25}  # values of eight bytes, and a validity bitmap
    failed = [{"report": "no", "error": "EpochError", **three}]
    assert measured["told"] == [*[task_reports] * 9, failed]
    assert measured["kept"] > 50_000 > 5_000 > measured["looked_at"]
    assert (measured["left"], measured["zips"]) == (0, 0)
    assert not measured["pandas"]
