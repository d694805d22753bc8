"""A commit as one file, created only if absent; its last line is a checksum. One file per epoch, the last is the state."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from slackwater.errors import EpochError, ExhaustedError, FencedError, StateError, is_forbidden, unreadable
from slackwater.state import migrations
from slackwater.state.commit import Commit, parse_commit
from slackwater.state.files.arrow import file_checksum
from slackwater.state.files.storage import Storage
from slackwater.state.protocol import StoredRecord
from slackwater.state.record_fields import RecordError


@dataclass(frozen=True)
class CommitLog:
    """The commits of a pipeline."""

    place: Storage

    def epochs(self) -> list[int]:
        """Those that are there, in order. Raises ExhaustedError."""
        try:
            sizes = self.place.sizes("manifests")
        except OSError as error:
            raise ExhaustedError.from_error(error) or error from None
        return sorted(int(name[:-5]) for name in sizes if re.fullmatch(r"[0-9]{9,18}\.json", name))

    def epochs_to_the_last(self) -> list[int]:
        """The same with those that the list of an object store does not show yet: one request more. Raises StateError."""
        epochs = self.epochs()
        while self.place.is_remote and self.place.has(self.file(following := epochs[-1] + 1 if epochs else 0)):
            epochs.append(following)
        return epochs

    @staticmethod
    def file(epoch: int) -> str:
        return f"manifests/{epoch:09d}.json"

    def shown(self, epoch: int) -> str:
        """The file of a commit, for messages."""
        return self.place.shown(self.file(epoch))

    def written(self, epoch: int) -> StoredRecord:
        """A manifest as it is, whole, and of a format that can be read."""
        shown = self.shown(epoch)
        try:
            text, _, ending = self.place.read(self.file(epoch)).content.decode().rstrip("\n").rpartition("\n")
            data = json.loads(text)
            version = data["format"]
            if not isinstance(data, dict) or type(version) is not int:
                raise ValueError("no record with a format")
        except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            raise (
                ExhaustedError.from_error(error)
                or unreadable(f"manifest {shown}", error)
                or StateError(f"manifest {shown} is damaged or unreadable; restore it from a copy of the directory")
            ) from error
        if ending.partition(" ")[0] != file_checksum(text.encode()):
            raise StateError(f"manifest {shown} is damaged: it does not hold what was written; restore it from a copy")
        migrations.migration_route(version, f"state in {self.place.root}")
        return StoredRecord(version, data)

    def read(self, epoch: int) -> Commit:
        """The record of a commit. Raises StateError if it is not there, damaged, or another one's."""
        (version, data), shown = self.written(epoch), self.shown(epoch)
        try:
            commit = parse_commit(data, version, f"manifest {shown}")
        except RecordError as error:
            raise StateError(f"manifest {shown} is damaged: {error}; restore it from a copy") from None
        if (commit.pipeline, commit.epoch) != (self.place.name, epoch):
            raise StateError(
                f'manifest {shown} is of epoch {commit.epoch} of "{commit.pipeline[:100]}", expected epoch {epoch} of '
                f'"{self.place.name}": it was put in the place of another; restore that one from a copy'
            )
        return commit

    def put(self, commit: Commit, latest: int, writer: str = "") -> None:
        """Commit, if the one of epoch `latest` is still there (-1: none). Raises FencedError, EpochError.

        `writer`: who commits, where a commit whose answer was lost has to be told from another runner's.
        """
        text, place = commit.model_dump_json(), self.place
        sealed = f"{text}\n{file_checksum(text.encode())}{f' {writer}' if writer else ''}\n".encode()
        # where each look is a request, the lease says whether another runner went on
        if latest >= 0 and not place.is_remote and not place.has(self.file(latest)):
            raise FencedError(f"epoch {latest} is gone from {place.root}: another runner went on; this one stops")
        try:
            created = place.create(self.file(commit.epoch), sealed)
        except OSError as error:
            remedy = "let this user write there" if is_forbidden(error) else "make room"
            raise ExhaustedError.from_error(error) or EpochError(
                f"epoch {commit.epoch} was not committed: a file in {place.root} cannot be written ({error.strerror}); "
                f"{remedy} and start again"
            ) from None
        if not created:
            raise FencedError(
                f"epoch {commit.epoch} was already committed by another runner in {place.root}; this one stops"
            )
