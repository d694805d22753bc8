"""Report missing permissions on state files as such, not as missing space or damage.

The tests run as a user other than root.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.session_store_commits import commit_sessions_of_users, open_session_store

from slackwater.state.files.store import FilesStore

NOBODY = 65534
# imports come first: the user nobody may be unable to read the files of the interpreter
CODE = """import os, sys
import tests.support.session_store_commits as stores
from slackwater.errors import SlackwaterError
from slackwater.state.files.store import FilesStore
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
store = FilesStore(sys.argv[1], "p")
try:
    found = store.open()
    store.prepare(stores.LOGIC)
    stores.commit_sessions_of_users(store, found, "b")
except SlackwaterError as error:
    print(error)
"""
READ = "cannot be read (Permission denied); it may be intact; give this user read access, and start again"
WRITE = "give this user write access, and start again"


@pytest.fixture
def public_directory() -> Iterator[Path]:
    """Yield a directory that every user may enter. The directories of pytest belong to one user."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.mark.parametrize(
    ("part", "mode", "expected"),
    [
        ("manifests/*.json", 0o000, READ),
        ("segments/*.arrow", 0o000, READ),
        ("segments", 0o555, WRITE),
        ("manifests", 0o555, WRITE),
        ("lock", 0o444, "expected a writable file; give this user write access"),
    ],
)
def test_missing_permission_is_reported_and_the_next_start_continues(
    public_directory: Path, part: str, mode: int, expected: str
) -> None:
    home = public_directory / "state"
    store = open_session_store(lambda: FilesStore(str(home), "p"))
    done = commit_sessions_of_users(store, None, "a")
    store.close()
    spoiled = sorted(Path(store.root).glob(part))
    assert spoiled
    before = [path.stat().st_mode for path in spoiled]
    for path in [home, *home.rglob("*")]:
        if os.geteuid() == 0:
            os.chown(path, NOBODY, NOBODY)
    for path in spoiled:
        path.chmod(mode)
    said = subprocess.run([sys.executable, "-c", CODE, str(home)], capture_output=True, text=True, check=True).stdout
    assert expected in said
    assert said.count("\n") == 1
    for path, was in zip(spoiled, before, strict=True):
        path.chmod(was)
    again = open_session_store(lambda: FilesStore(str(home), "p"))
    assert again.storage.has(f"manifests/{done.epoch:09d}.json") and not again.storage.has("manifests/000000001.json")
    assert commit_sessions_of_users(again, done, "b").epoch == 1
    again.close()


CHECK = """import os, sys
import slackwater.runner.connection_checks as connecting
import slackwater.runner.local_paths as paths
from slackwater.config import toml
pipeline = toml.load(sys.argv[1])
def check():
    return [*paths.unwritable_directories(pipeline), *connecting.find_connection_problems(pipeline)]
check()  # as the permitted user; this imports what the second call needs
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
print(*check(), sep="\\n", end="")
"""
PIPELINE = """name = "p"
connections.lake.kind = "files"
sources = [{{ name = "events", connection = "lake", query = "{home}/in/*.jsonl", format = "json", schema = "user STRING, ts TIMESTAMP" }}]
transform.window = {{ kind = "tumbling", duration = "1m", event_time_column = "ts", group_by = ["user"], aggregations = [{{ agg = "count", as = "n" }}] }}
target = {{ connection = "lake", path = "{home}/out" }}
state_store = {{ kind = "files", path = "{home}/state" }}
"""


@pytest.mark.parametrize(
    ("part", "mode", "expected"),
    [
        (
            "in/1.jsonl",
            0o000,
            'source "events": "{path}" cannot be read (Permission denied); give this user read access',
        ),
        ("in/*.jsonl", 0o000, '"{home}/in/0.jsonl" (and 2 more) cannot be read (Permission denied)'),
        ("in", 0o000, '"{path}" cannot be listed (Permission denied)'),
        ("state/p/segments", 0o555, 'state_store.path: "{path}" cannot be written (Permission denied)'),
        ("out/_slackwater", 0o555, 'target.path: "{path}" cannot be written (Permission denied)'),
        ("in", 0o755, ""),
    ],
)
def test_check_command_names_paths_that_this_user_cannot_read_or_write(
    public_directory: Path, part: str, mode: int, expected: str
) -> None:
    for name in ("in", "state/p/segments", "state/p/manifests", "out/_slackwater"):
        (public_directory / name).mkdir(parents=True)
    for number in range(3):
        (public_directory / "in" / f"{number}.jsonl").write_text("")
    config = public_directory / "p.toml"
    config.write_text(PIPELINE.format(home=public_directory))
    if os.geteuid() == 0:
        for path in [public_directory, *public_directory.rglob("*")]:
            os.chown(path, NOBODY, NOBODY)
    spoiled = sorted(public_directory.glob(part))
    assert spoiled
    for path in spoiled:
        path.chmod(mode)
    done = subprocess.run(
        [sys.executable, "-c", CHECK, str(config)], capture_output=True, text=True, check=False, cwd=Path.cwd()
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == bool(expected)
    assert expected.format(path=spoiled[0], home=public_directory) in "".join(said)
    for path in spoiled:
        path.chmod(0o755)
