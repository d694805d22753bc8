"""The commits of a pipeline: one file per epoch, which is never overwritten.

The last line of each file is a checksum. The newest file describes the current state.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from slackwater.errors import EpochError, ExhaustedError, FencedError, StateError, Topic, is_forbidden, permission_error
from slackwater.state import migrations
from slackwater.state.commit import Commit, parse_commit
from slackwater.state.commit_record_fields import RecordError
from slackwater.state.protocol import StoredRecord
from slackwater.storage.arrow_files import file_checksum
from slackwater.storage.base import Storage


@dataclass(frozen=True)
class CommitLog:
    """The commits of a pipeline."""

    storage: Storage

    def epochs(self) -> list[int]:
        """Return the stored epochs, ascending. Raises ExhaustedError if no file descriptor is left."""
        try:
            sizes = self.storage.sizes("manifests")
        except OSError as error:
            raise ExhaustedError.from_error(error) or error from None
        return sorted(int(name[:-5]) for name in sizes if re.fullmatch(r"[0-9]{9,18}\.json", name))

    def list_all_epochs(self) -> list[int]:
        """Return the stored epochs, including those that an object store's listing does not show yet.

        This costs at least one additional request. Raises StateError if the store cannot be read.
        """
        epochs = self.epochs()
        while self.storage.is_remote and self.storage.has(self.file(following := epochs[-1] + 1 if epochs else 0)):
            epochs.append(following)
        return epochs

    @staticmethod
    def file(epoch: int) -> str:
        return f"manifests/{epoch:09d}.json"

    def full_name(self, epoch: int) -> str:
        """Return the full name of the file of a commit, for messages."""
        return self.storage.full_name(self.file(epoch))

    def read_record(self, epoch: int) -> StoredRecord:
        """Read a commit as it is stored. Raises StateError if it is damaged or its format cannot be migrated."""
        shown = self.full_name(epoch)
        try:
            text, _, ending = self.storage.read(self.file(epoch)).content.decode().rstrip("\n").rpartition("\n")
            data = json.loads(text)
            version = data["format"]
            if not isinstance(data, dict) or type(version) is not int:
                raise ValueError("found no record with a format")
        except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            raise (
                ExhaustedError.from_error(error)
                or permission_error(f"manifest {shown}", error)
                or StateError(
                    f"manifest {shown} is damaged or unreadable; restore it from a copy of the directory",
                    Topic.STATE_DAMAGED,
                )
            ) from error
        if ending.partition(" ")[0] != file_checksum(text.encode()):
            raise StateError(
                f"manifest {shown} is damaged: it does not match its checksum; restore it from a backup",
                Topic.STATE_DAMAGED,
            )
        migrations.migration_route(version, f"state in {self.storage.root}")
        return StoredRecord(version, data)

    def read(self, epoch: int) -> Commit:
        """Read a commit. Raises StateError if it is missing, damaged, or belongs to another epoch or pipeline."""
        (version, data), shown = self.read_record(epoch), self.full_name(epoch)
        try:
            commit = parse_commit(data, version, f"manifest {shown}")
        except RecordError as error:
            raise StateError(
                f"manifest {shown} is damaged: {error}; restore it from a backup", Topic.STATE_DAMAGED
            ) from None
        if (commit.pipeline, commit.epoch) != (self.storage.name, epoch):
            raise StateError(
                f'manifest {shown} holds epoch {commit.epoch} of "{commit.pipeline[:100]}", expected epoch {epoch} of '
                f'"{self.storage.name}": another manifest was overwritten; restore it from a backup',
                Topic.STATE_DAMAGED,
            )
        return commit

    def put(self, commit: Commit, latest: int, writer: str = "") -> None:
        """Write a commit. On disk, the file of epoch `latest` must still exist (-1: there is no earlier epoch).

        `writer`: a token of this runner. If the file of the epoch exists, its token shows whether this runner wrote it
        (and the response was lost) or another runner did. Raises FencedError if another runner took over, and
        EpochError if the file cannot be written.
        """
        text, storage = commit.model_dump_json(), self.storage
        sealed = f"{text}\n{file_checksum(text.encode())}{f' {writer}' if writer else ''}\n".encode()
        # in an object store, the lease shows whether another runner took over
        if latest >= 0 and not storage.is_remote and not storage.has(self.file(latest)):
            raise FencedError(
                f"epoch {latest} is gone from {storage.root}: another runner took over; this one is stopping"
            )
        try:
            created = storage.create(self.file(commit.epoch), sealed)
        except OSError as error:
            remedy = "give this user write access" if is_forbidden(error) else "free some space"
            raise ExhaustedError.from_error(error) or EpochError(
                f"epoch {commit.epoch} was not committed: a file in {storage.root} cannot be written ({error.strerror}); "
                f"{remedy} and start again"
            ) from None
        if not created:
            raise FencedError(
                f"epoch {commit.epoch} was already committed in {storage.root} by another runner; this one is stopping"
            )
