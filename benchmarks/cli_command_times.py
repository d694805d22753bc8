"""Measure `import slackwater` and commands that do not start Spark: the fastest of five runs, in seconds.

python -m benchmarks.cli_command_times FILE
"""

from __future__ import annotations

import subprocess
import sys
import time

GOALS = {"import": 0.2, "check": 1.0, "explain": 1.0}


def measure_fastest_run_seconds(*command: str) -> float:
    took = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        took.append(time.perf_counter() - began)
    return min(took)


def main() -> None:
    file = sys.argv[1]
    bare = measure_fastest_run_seconds("-c", "pass")
    print(f"{'python':8} {bare:5.2f} s")
    for name, goal in GOALS.items():
        command = ["-c", "import slackwater"] if name == "import" else ["-m", "slackwater.cli.main", name, file]
        took = measure_fastest_run_seconds(*command) - (bare if name == "import" else 0.0)
        print(f"{name:8} {took:5.2f} s, goal {goal:.1f} s{'' if took < goal else ': MISSED'}")


if __name__ == "__main__":
    main()
