"""How far the targets got: the last epoch that all have, and those that have their part of one that others miss; each a file with
a checksum."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

from slackwater.errors import ExhaustedError, StateError
from slackwater.state.files.arrow import checksum, write_synced

log = logging.getLogger("slackwater")


def read(path: Path) -> int:
    """The last epoch that was published, -1 for none. Raises StateError."""
    try:
        text = path.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return -1
    except OSError as error:
        raise ExhaustedError.of(error) or StateError(
            f"{path} cannot be read ({error.strerror}); check who may read it"
        ) from error
    found = re.fullmatch("([0-9]{1,18})(?: ([0-9a-f]{16}))?", text.strip())  # earlier versions wrote no checksum
    if found is None or found[2] not in (None, checksum(found[1].encode())):
        raise StateError(
            f"{path} is damaged; restore it from a copy of the directory, or remove it: the latest epoch is published "
            "once more then, which a target that knows its last epoch ignores"
        )
    return int(found[1])


def note(path: Path, epoch: int) -> None:
    """Put down an epoch as the last one that was published. Raises EpochError."""
    temporary, number = path.with_name(f".{path.name}"), str(epoch)
    write_synced(temporary, f"{number} {checksum(number.encode())}\n".encode())
    temporary.replace(path)


def reached(path: Path, epoch: int) -> frozenset[str]:
    """The targets that have their part of this epoch; a damaged note is none: most targets ignore an epoch that they have."""
    try:
        text, _, sum_ = path.read_text(errors="replace").strip().rpartition("\n")
        found = json.loads(text) if checksum(text.encode()) == sum_ else None
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("targets"), list):
        log.warning("%s is damaged; what an epoch left in part is published once more", path)
        return frozenset()
    return frozenset(map(str, found["targets"])) if found.get("epoch") == epoch else frozenset()


def note_reached(path: Path, epoch: int, target: str) -> None:
    """Put down that a target has its part of an epoch, beside those that were put down of it. Raises EpochError."""
    text = json.dumps({"epoch": epoch, "targets": sorted({*reached(path, epoch), target})})
    temporary = path.with_name(f".{path.name}")
    write_synced(temporary, f"{text}\n{checksum(text.encode())}\n".encode())
    temporary.replace(path)
