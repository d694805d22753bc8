"""A commit as one file, created only if absent; its last line is a checksum. One file per epoch, the last is the state."""

from __future__ import annotations

import json
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from slackwater.errors import EpochError, ExhaustedError, FencedError, StateError
from slackwater.state import migrations
from slackwater.state.commit import Commit, misfit
from slackwater.state.files.arrow import checksum
from slackwater.state.protocol import Written


@dataclass(frozen=True)
class Log:
    """The commits of a pipeline, below its directory."""

    directory: Path

    def epochs(self) -> list[int]:
        """Those that are there, in order. Raises ExhaustedError."""
        try:
            found = list((self.directory / "manifests").glob("*.json"))
        except OSError as error:
            raise ExhaustedError.of(error) or error from None
        return sorted(int(p.stem) for p in found if re.fullmatch("[0-9]{9,18}", p.stem))

    def path(self, epoch: int) -> Path:
        return self.directory / "manifests" / f"{epoch:09d}.json"

    def written(self, epoch: int) -> Written:
        """A manifest as it is, whole, and of a format that can be read."""
        path = self.path(epoch)
        try:
            text, _, digest = path.read_text().rstrip("\n").rpartition("\n")
            data = json.loads(text)
            version = int(data["format"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            raise ExhaustedError.of(error) or StateError(
                f"manifest {path} is damaged or unreadable; restore it from a copy of the directory"
            ) from error
        if digest != checksum(text.encode()):
            raise StateError(f"manifest {path} is damaged: it does not hold what was written; restore it from a copy")
        migrations.route(version, f"state in {self.directory}")
        return Written(version, data)

    def read(self, epoch: int) -> Commit:
        """The record of a commit. Raises StateError if it is not there, damaged, or another one's."""
        (version, data), path = self.written(epoch), self.path(epoch)
        try:
            found = Commit.model_validate(migrations.forward(data, version, f"manifest {path}"))
        except ValidationError as error:
            raise StateError(
                f"manifest {self.path(epoch)} is damaged: {misfit(error)}; restore it from a copy"
            ) from error
        except RecursionError:
            raise StateError(f"manifest {path} is damaged: it is nested too deeply; restore it from a copy") from None
        if (found.pipeline, found.epoch) != (self.directory.name, epoch):
            raise StateError(
                f'manifest {path} is of epoch {found.epoch} of "{found.pipeline}", expected epoch {epoch} of '
                f'"{self.directory.name}": it was put in the place of another; restore that one from a copy'
            )
        return found

    def put(self, commit: Commit, latest: int) -> None:
        """Commit, if the one of epoch `latest` is still there (-1: none). Raises FencedError, EpochError."""
        final, text = self.path(commit.epoch), commit.model_dump_json()
        try:
            with tempfile.NamedTemporaryFile("w", dir=self.directory, prefix=".commit-", delete=False) as file:
                file.write(f"{text}\n{checksum(text.encode())}\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ExhaustedError.of(error) or EpochError(
                f"epoch {commit.epoch} was not committed: a file in {self.directory} cannot be written ({error.strerror}); "
                "make room and start again"
            ) from None
        try:
            if latest >= 0 and not self.path(latest).exists():
                raise FencedError(
                    f"epoch {latest} is gone from {self.directory}: another runner went on; this one stops"
                )
            os.link(file.name, final)
        except FileExistsError as error:
            raise FencedError(
                f"epoch {commit.epoch} was already committed by another runner in {self.directory}; this one stops"
            ) from error
        finally:
            Path(file.name).unlink()
        _sync(final.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
