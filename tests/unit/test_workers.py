"""What a Python worker of Spark does around a task, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

IN_A_WORKER = """
import gc, json, sys
import pyarrow as pa
from slackwater.errors import EpochError
from slackwater.spark.workers import partition

class Cycle: pass

def task(table):
    cycle = Cycle()
    cycle.own = cycle  # garbage of an epoch: a collector has to find it
    return json.dumps({"names": table.column_names, "rows": table.num_rows})

def fails(table):
    raise EpochError("no")

batch = pa.RecordBatch.from_arrays([pa.nulls(3, pa.int64())], ["c0"])
told = [b.to_pylist() for _ in range(9) for b in partition(["k"], task, iter([batch, batch]))]
told += [b.to_pylist() for b in partition(["k"], fails, iter([batch]))]
assert list(partition(["k"], task, iter([]))) == []
looked_at, kept = len(gc.get_objects()), gc.get_freeze_count()
gc.collect()
left = sum(type(o) is Cycle for o in gc.get_objects())
print(json.dumps({"told": told, "kept": kept, "looked_at": looked_at, "left": left, "pandas": "pandas" in sys.modules}))
"""


def test_a_task_is_reported_without_pandas_and_modules_are_no_work_for_the_collector() -> None:
    found = json.loads(subprocess.run([sys.executable, "-c", IN_A_WORKER], capture_output=True, check=True).stdout)
    of_task = [{"report": json.dumps({"names": ["k"], "rows": 6}), "error": ""}]
    assert found["told"] == [*[of_task] * 9, [{"report": "no", "error": "EpochError"}]]
    assert found["kept"] > 50_000 > 5_000 > found["looked_at"]
    assert found["left"] == 0
    assert not found["pandas"]
