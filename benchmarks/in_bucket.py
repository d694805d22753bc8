"""`python -m benchmarks.in_bucket`: epochs of 200,000 rows with their state in a bucket, beside the same on the local disk, in turn.

The S3 server (moto) runs beside them on the same cores: what it takes is part of the bucket's time.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES, SLACKWATER, WARM_UP
from benchmarks.data import generate
from benchmarks.figures import summarised
from benchmarks.process import run_worker
from benchmarks.systems import STATE
from slackwater.testing.objects import S3, Door

GOAL = 0.7


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.in_bucket", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--driver-memory", default="4g")
    options = parser.parse_args()
    case = CASES[0]
    stream = replace(case.stream, epochs=options.epochs)
    runs: dict[str, list[dict[str, Any]]] = {"disk": [], "bucket": []}
    load = []
    with (
        tempfile.TemporaryDirectory(prefix="slackwater-bench-") as root,
        S3.started() as s3,
        Door.before(s3.port) as door,
    ):
        data = generate(stream, Path(root) / "data")
        os.environ["SLACKWATER_CACHE_DIR"] = f"{root}/cache"
        for name, value in s3.options().items():
            os.environ[f"AWS_{name.upper()}"] = value
        for turn in range(options.rounds):
            for where in list(runs)[:: 1 if turn % 2 == 0 else -1]:
                os.environ[STATE] = s3.bucket(f"b{uuid.uuid4().hex}") if where == "bucket" else ""
                load.append(os.getloadavg()[0])
                runs[where].append(
                    run_worker(SLACKWATER, case.query, data, Path(root) / f"{where}-{turn}", options.driver_memory)
                )
        # once more, counted at the door
        os.environ |= {STATE: s3.bucket(f"b{uuid.uuid4().hex}"), "AWS_ENDPOINT": f"http://127.0.0.1:{door.port}"}
        run_worker(SLACKWATER, case.query, data, Path(root) / "counted", options.driver_memory)
    found = {where: summarised(results, WARM_UP) for where, results in runs.items()}
    ratio = found["disk"]["median_s"] / found["bucket"]["median_s"]
    same = found["disk"]["output"] == found["bucket"]["output"]
    print(
        json.dumps(
            {w: {k: v for k, v in f.items() if k in ("median_s", "phases", "best_s")} for w, f in found.items()},
            indent=1,
        )
    )
    print(
        f"bucket {found['bucket']['median_s']:.2f} s, disk {found['disk']['median_s']:.2f} s per epoch: {ratio:.2f} times the throughput, goal {GOAL}"
    )
    print(f"outputs equal: {same}; load before each run: {', '.join(f'{x:.1f}' for x in load)}")
    print(f"{len(door.seen) / options.epochs:.1f} requests per epoch, of all kinds, starts and garbage included")
    return int(not same)


if __name__ == "__main__":
    raise SystemExit(main())
