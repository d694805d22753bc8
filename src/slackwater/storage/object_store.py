"""State in an object store, below a URL: s3://bucket/prefix, gs://bucket/prefix, abfss://container@account.dfs…/prefix.

    segment, output   put once, under a unique name; read from a memory-mapped copy in the local cache
    manifest          put if absent; this put is the commit
    published         put if unchanged since this runner read or wrote it
    lock              the lease of the runner, see `object_store_lease`

An epoch costs one put per file of a shard, and one each for the manifest, for `published` and for the list of files that
were read. A runner does not request objects that it has written, and fetches other objects only once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import polars as pl
import xxhash

from slackwater.errors import FencedError, StateError, Topic
from slackwater.storage import object_store_lease
from slackwater.storage.arrow_files import encode_frame, file_checksum
from slackwater.storage.base import FileRef, Storage, StorageLock, VersionedContent
from slackwater.storage.file_cache import FileCache
from slackwater.storage.object_client import ObjectClient

AT_ONCE = 16  # parallel requests
MOVED = "moved"  # marker object: the state has been put aside, and its old objects are being deleted

_clients: dict[tuple[object, ...], tuple[ObjectClient, FileCache]] = {}
_making = threading.Lock()


@dataclass(frozen=True)
class ObjectStorage:
    """A `Storage` in an object store. It can be pickled for workers, together with its options.

    Args:
        url: The URL below which the states of all pipelines are stored, without a trailing slash.
        name: The name of the pipeline.
        options: Settings of the client as sorted pairs of name and value. They may contain secrets.
    """

    url: str
    name: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def from_url(cls, url: str, name: str, options: Mapping[str, str]) -> ObjectStorage:
        """Return the storage for the state of a pipeline. Raises StartError for invalid options.

        Args:
            url: The URL below which the states of all pipelines are stored.
            name: The name of the pipeline.
            options: Settings of the client, such as credentials.
        """
        storage = cls(url.rstrip("/"), name, tuple(sorted((str(k), str(v)) for k, v in options.items())))
        _ = storage.client  # report invalid options now instead of at the first request
        return storage

    @property
    def client(self) -> ObjectClient:
        return self._connection[0]

    @property
    def cache(self) -> FileCache:
        return self._connection[1]

    @property
    def _connection(self) -> tuple[ObjectClient, FileCache]:
        """Return the client and the cache of this process, which forked processes cannot use."""
        key = (os.getpid(), self.url, self.name, self.options)
        with _making:
            if key in _clients:
                return _clients[key]
            endpoint = "".join(v for k, v in self.options if "endpoint" in k) or os.environ.get("AWS_ENDPOINT_URL", "")
            cache_name = xxhash.xxh3_128_hexdigest(f"{endpoint}\0{self.root}".encode())
            return _clients.setdefault(key, (ObjectClient(self.root, dict(self.options)), FileCache(cache_name)))

    @property
    def root(self) -> str:
        return f"{self.url}/{self.name}"

    @property
    def is_remote(self) -> bool:
        return True

    def full_name(self, file: str) -> str:
        return f"{self.root}/{file}"

    def sibling(self, name: str) -> ObjectStorage:
        return replace(self, name=name)

    def names(self) -> list[str]:
        return pipeline_names(self.url, dict(self.options))

    # -- immutable files with unique names -----------------------------------------------------------------------

    def write(self, file: str, frame: pl.DataFrame) -> tuple[int, str]:
        content = memoryview(encode_frame(frame)).cast("B")
        self.client.put(file, content)
        self.cache.add(file, content)
        return len(content), file_checksum(content)

    def put(self, file: str, content: bytes) -> None:
        self.client.put(file, content)
        self.cache.add(file, content)

    def local_path(self, file: FileRef) -> Path:
        if not self.cache.has_copy(file.file, file.checksum):
            self._fetch(file)
        return self.cache.path(file.file)

    def _fetch(self, file: FileRef) -> None:
        try:
            content = self.client.get(file.file, file.bytes).content
        except FileNotFoundError:
            raise self._damage_error(file, "is missing") from None
        if damage := _content_damage(content, file):
            raise self._damage_error(file, damage)
        self.cache.add(file.file, content)

    def _damage_error(self, file: FileRef, damage: str) -> StateError:
        return StateError(
            f"state file {self.full_name(file.file)} {damage}; restore it from a copy of the state; nothing was changed",
            Topic.STATE_DAMAGED,
        )

    def fetch(self, files: Sequence[FileRef]) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self.local_path, files))

    def find_damage(self, file: FileRef) -> str:
        try:
            content = self.client.get(file.file, file.bytes).content
        except FileNotFoundError:
            return "is missing"
        damage = _content_damage(content, file)
        if not damage:
            self.cache.add(file.file, content)
        return damage

    def check(self, files: Sequence[FileRef]) -> None:
        """Raise StateError if the store does not list a file, or lists it with a different size.

        Checksums are verified later, when the files are fetched.
        """
        sizes = {
            f"{folder}/{n}": s
            for folder in {f.file.partition("/")[0] for f in files}
            for n, s in self.sizes(folder).items()
        }
        for file in files:
            size = sizes.get(file.file)
            if size is None:
                if self.has(file.file):  # because a listing may be outdated
                    continue
                raise self._damage_error(file, "is missing")
            if file.bytes is not None and size != file.bytes:
                raise self._damage_error(file, "is truncated" if size < file.bytes else "is longer than expected")

    # -- commits and markers -------------------------------------------------------------------------------------

    def read(self, file: str) -> VersionedContent:
        stored = self.client.get(file)
        return VersionedContent(bytes(stored.content), stored.version)

    def create(self, file: str, content: bytes) -> bool:
        return self.client.create(file, content) is not None

    def replace(self, file: str, content: bytes, version: str | None) -> str:
        new_version = self.client.rewrite(file, content, version)
        if new_version is None:
            raise FencedError(f"another runner has replaced {self.full_name(file)}; this runner is stopping")
        return new_version

    def sizes(self, folder: str) -> Mapping[str, int]:
        return self.client.sizes(folder)

    def has(self, file: str) -> bool:
        return self.client.has(file)

    def delete(self, files: Collection[str]) -> None:
        if files:
            self.client.delete(files)
            self.cache.discard(files)

    # -- the whole state -----------------------------------------------------------------------------------------

    def prepare(self) -> None:
        return

    def lock(self) -> StorageLock:
        # another client, because a lease needs a shorter timeout than a segment
        held = object_store_lease.ObjectStoreLease(
            ObjectClient(self.root, {"timeout": f"{object_store_lease.ANSWER_S:g}s", **dict(self.options)}), "lock"
        )
        try:
            held.take()
            if self.has(MOVED):  # a runner was killed while it put the state aside
                self._clear()
        except BaseException:
            held.close()
            raise
        return held

    def holder(self) -> str | None:
        return object_store_lease.lease_holder(self.client, "lock")

    def is_fresh(self) -> bool:
        return not self.client.sizes("")

    def copy_from(self, origin: Storage, file: str) -> None:
        assert isinstance(origin, ObjectStorage)
        parent = ObjectStorage(self.url, "", self.options)
        parent.client.copy(f"{origin.name}/{file}", f"{self.name}/{file}")

    def put_aside(self, name: str) -> str:
        """Copy the state to another name, and delete the original. Return the URL of the copy.

        Commits are copied last, so that an interrupted copy does not count as a state. If the deletion is interrupted,
        the next `lock` completes it.
        """
        aside = self.sibling(name)
        files = [f for f in self.client.sizes("") if f not in ("lock", MOVED)]
        commits = [f for f in files if f.startswith("manifests/")]
        for group in ([f for f in files if f not in commits], commits):
            with ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(partial(aside.copy_from, self), group))
        self.client.put(MOVED, aside.root.encode())
        self._clear()
        return aside.root

    def _clear(self) -> None:
        """Delete all objects except the lease. The marker MOVED is deleted last."""
        self.delete([f for f in self.client.sizes("") if f not in ("lock", MOVED)])
        self.delete([MOVED])

    def remove(self) -> None:
        self.delete(list(self.client.sizes("")))


def _content_damage(content: memoryview, file: FileRef) -> str:
    if file.bytes is not None and len(content) != file.bytes:
        return "is truncated" if len(content) < file.bytes else "is longer than expected"
    return "" if file_checksum(content) == file.checksum else "does not match its checksum"


def pipeline_names(url: str, options: Mapping[str, str]) -> list[str]:
    """Return the names of the pipelines with a state below a URL.

    Raises StartError for invalid options, and StateError if the store cannot be listed.
    """
    client = ObjectClient(url.rstrip("/"), options)
    return [name for name in client.list_folder()[0] if _has_state(client, name)]


def is_state(url: str, name: str, options: Mapping[str, str]) -> bool:
    """Return whether the pipeline `name` has a state below a URL.

    Raises StartError for invalid options, and StateError if the store cannot be listed.
    """
    return _has_state(ObjectClient(url, options), name)


def _has_state(client: ObjectClient, name: str) -> bool:
    folders, files = client.list_folder(name)
    return "manifests" in folders or "lock" in files
