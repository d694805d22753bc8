"""Fuzzer of hostile input: each case is answered correctly, or refused with a one-line Slackwater error.

    python -m tests.laws.fuzzers.run_fuzzers --cases 20000 --seed 1          # prints the defects of each kind with the seed
    python -m tests.laws.fuzzers.run_fuzzers --kind where --only 4711        # repeats one case

A kind draws one case from a seed and judges it.
A foreign exception, a panic, a hang, a wrong row and an empty error are defects.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import multiprocessing
import os
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor

from tests.laws.fuzzers import (
    fuzz_cli_commands,
    fuzz_column_names,
    fuzz_state_records,
    fuzz_state_server,
    fuzz_status_page,
    fuzz_toml_configs,
    fuzz_where_conditions,
    fuzz_window_rows,
)
from tests.laws.generators import seed_runner

HANG_S = 60.0
Kind = Callable[
    [random.Random], str
]  # draws and judges a case, and returns an outcome ("answered", "refused: …") or raises AssertionError
KINDS: Mapping[str, tuple[Kind, int]] = {  # each function with its share of the cases
    "where": (fuzz_where_conditions.check_case, 8),
    "http": (fuzz_state_server.check_random_request, 5),
    "page": (fuzz_status_page.check_random_page_request, 5),
    "toml": (fuzz_toml_configs.check_random_config, 4),
    "names": (fuzz_column_names.check_random_column_names, 1),
    "values": (fuzz_window_rows.check_case, 1),
    "states": (fuzz_state_records.check_random_damaged_state, 1),
    "commands": (fuzz_cli_commands.check_random_command_line, 1),
}


def run_fuzz_case(kind: str, seed: int) -> tuple[str, str]:
    """Run one case and return the outcome, with a description if it is a defect."""
    rng = random.Random(f"{kind} {seed}")
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    began = time.process_time()  # a busy machine does not increase processor time
    try:
        word = KINDS[kind][0](rng)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = (str(error).strip().splitlines() or [""])[0][:300]
        where = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
        return "DEFECT", f"--kind {kind} --only {seed}: {type(error).__name__}: {text} ({where})"
    finally:
        faulthandler.cancel_dump_traceback_later()
    if (took := time.process_time() - began) > HANG_S / 3:
        return "DEFECT", f"--kind {kind} --only {seed}: took {took:.0f} s"
    return word, ""


def _run_cases(work: tuple[str, list[int]]) -> tuple[str, Counter[str], list[str]]:
    kind, numbers = work
    seed_runner.hide_warnings()
    results = [run_fuzz_case(kind, n) for n in numbers]
    return kind, Counter(word for word, _ in results), [story for _, story in results if story]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=[*KINDS])
    parser.add_argument("--only", type=int)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    if options.only is not None:
        word, story = run_fuzz_case(options.kind or "where", options.only)
        print(word, story)
        return bool(story)
    shares = {k: s for k, (_, s) in KINDS.items() if options.kind in (None, k)}
    work: list[tuple[str, list[int]]] = []
    for kind, share in shares.items():
        numbers = list(range(options.seed, options.seed + options.cases * share // sum(shares.values())))
        work += [(kind, numbers[i : i + 50]) for i in range(0, len(numbers), 50)]
    began, words, stories = time.monotonic(), {k: Counter[str]() for k in shares}, list[str]()
    with ProcessPoolExecutor(
        options.jobs, multiprocessing.get_context("spawn"), seed_runner.prepare_worker_process
    ) as pool:
        for kind, counted, failures in pool.map(_run_cases, work):
            words[kind] += counted
            stories += failures
            for story in failures:
                print(story, flush=True)
    for kind, counts in words.items():
        print(f"{kind:<8}", ", ".join(f"{count} {word}" for word, count in counts.most_common()))
    print(
        f"{sum(sum(c.values()) for c in words.values())} cases, {len(stories)} defects, {time.monotonic() - began:.0f} s"
    )
    gc.collect()
    return bool(stories)


if __name__ == "__main__":
    raise SystemExit(main())
