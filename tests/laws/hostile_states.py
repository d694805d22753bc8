"""States that are damaged, and manifests that lie with a valid checksum: told by name, or harmless; never a foreign error."""

from __future__ import annotations

import atexit
import functools
import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests.laws import corrupted
from tests.laws import hostile_words as words

from slackwater.errors import SlackwaterError
from slackwater.maintenance.verify import verify
from slackwater.query.view import StateView
from slackwater.state.files.arrow import checksum
from slackwater.state.files.store import FilesStore

LIES: tuple[Any, ...] = (
    *words.NUMBERS[:10],
    "",
    "x",
    None,
    [],
    {},
    [[]],
    {"a": 1},
    True,
    1.5,
    "../../../etc/passwd",
    "/etc/passwd",
)


def lie(rng: random.Random, data: Any) -> str:
    """Change one value somewhere within a manifest; returns where."""
    at, node, key = "", data, None
    while isinstance(node, dict | list) and node:
        holder, key = node, rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        at, node = f"{at}.{key}", node[key]
        if rng.random() < 0.1:
            break
    assert key is not None
    same = [v for v in LIES if type(v) is type(node)] if rng.random() < 0.6 else []
    holder[key] = rng.choice(same or LIES)
    return at


@functools.cache
def short(name: str) -> Path:
    """A sound state of a case with its last two epochs only: there is less to look at, for each of a thousand lies."""
    home = Path(tempfile.mkdtemp(prefix="slackwater-hostile-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    shutil.copytree(corrupted.stopped(name, True).home, home, dirs_exist_ok=True)
    for path in sorted((home / corrupted.NAME / "manifests").glob("*.json"))[:-2]:
        path.unlink()
    store = FilesStore(home, corrupted.NAME)
    store.open()
    store.collect_garbage()
    store.close()
    assert not verify(store).problems
    return home


def case(rng: random.Random) -> str:
    if rng.random() < 0.1:  # bytes: with the whole run after it
        outcome = corrupted.check(rng.randrange(10**9))
        return "refused" if outcome.refused else "harmless"
    name = rng.choice(list(corrupted.CASES))
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        shutil.copytree(short(name), home, dirs_exist_ok=True)
        path = sorted((home / corrupted.NAME / "manifests").glob("*.json"))[-1]
        data = json.loads(path.read_text().rpartition("\n")[0].rpartition("\n")[0] or path.read_text().splitlines()[0])
        what = "".join(lie(rng, data) for _ in range(rng.choice([1, 1, 2])))
        text = json.dumps(data)
        path.write_text(f"{text}\n{checksum(text.encode())}\n")
        words_of = []
        for ask in (_verified, _scanned, _opened, *([_started] if rng.random() < 0.2 else [])):
            try:
                words_of.append(ask(name, home))
            except SlackwaterError as error:
                words.one_line(error)
                words_of.append("refused")
            except BaseException as error:
                raise AssertionError(f"{name}: {what}: {ask.__name__}: {type(error).__name__}: {error}") from error
    return "refused" if "refused" in words_of else "accepted"


def _verified(case: str, home: Path) -> str:
    return "refused" if verify(FilesStore(home, corrupted.NAME)).problems else "accepted"


def _scanned(case: str, home: Path) -> str:
    with StateView(FilesStore(home, corrupted.NAME)) as view:
        view.scan(limit=5).to_dicts()
    return "accepted"


def _opened(case: str, home: Path) -> str:
    store = FilesStore(home, corrupted.NAME)
    try:
        store.open()
    finally:
        store.close()
    return "accepted"


def _started(case: str, home: Path) -> str:
    """What is believed must not end in a foreign error later."""
    corrupted.continued(case, corrupted.stopped(case, True), home)
    return "accepted"
