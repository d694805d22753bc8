"""`slackwater test`: runs the test files of a config and prints the differences row by row."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from slackwater.core.humanize import plural
from slackwater.errors import ConfigError
from slackwater.secrets import mask_secrets


def run_test_files(path: Path, update: bool = False) -> int:
    """Run the tests at a path. Return the exit code: 0 if all pass, 1 if any fails, 2 if a test or a config is invalid.

    `update`: rewrite the expectations of failed tests.
    """
    from slackwater.testing import case_file, case_runner

    began = time.monotonic()
    paths, tests, wrong = case_file.find_cases(path), [], 0
    for file in paths:
        try:
            tests.append(case_runner.LoadedCase.read(file))
        except ConfigError as error:
            wrong += 1
            print(mask_secrets(f"WRONG   {file}"))
            for line in error.problems:
                print(mask_secrets(f"  {line}"))
    failed = updated = 0
    if tests:
        print(f"starting Spark for {plural(len(tests), 'test')} …", file=sys.stderr, flush=True)
        with case_runner.quiet_logs():
            session = case_runner.spark_session([t.pipeline for t in tests])
            for test in tests:
                outcome = test.run(session)
                took = f"({outcome.seconds:.2f} s)"
                if not outcome.ok and update and outcome.failed is None:
                    from slackwater.testing.expectation_update import update_case as rewrite

                    rewrite(test.path, outcome)
                    updated += 1
                    print(f"updated {test.path} {took}", flush=True)
                elif outcome.ok:
                    print(f"ok      {test.path} {took}", flush=True)
                else:
                    failed, wrong = failed + (not outcome.wrong), wrong + outcome.wrong
                    print(f"{'WRONG ' if outcome.wrong else 'FAILED'}  {test.path} {took}")
                if not outcome.ok:
                    for line in outcome.lines():
                        print(mask_secrets(f"  {line}"), flush=True)
    passed = len(paths) - failed - wrong - updated
    counts = [(passed, "passed"), (failed, "failed"), (wrong, "wrong"), (updated, "updated")]
    counts_text = ", ".join(f"{n} {word}" for n, word in counts if n)
    print(f"{counts_text} in {time.monotonic() - began:.1f} s")
    return 2 if wrong else 1 if failed else 0
