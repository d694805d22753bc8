"""How far the target got: the last published epoch, a number with its checksum in a file of its own."""

from __future__ import annotations

import re
from pathlib import Path

from slackwater.errors import ExhaustedError, StateError
from slackwater.state.files.arrow import checksum, write_synced


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
