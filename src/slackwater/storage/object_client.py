"""A client for object stores that counts requests, retries them, and raises errors that suggest a remedy.

If the response to a conditional put is lost, the store may reject the retry although the put succeeded. A rejected
writer therefore reads the object, and compares it with the bytes that it sent. No two writers send the same bytes,
because the bytes include a token of the writer.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from slackwater.errors import EpochError, SlackwaterError, StartError, StateError, Topic
from slackwater.secret_masking import mask_secrets

EXTRA = "needs the package obstore, which is not installed; pip install 'slackwater[objects]'"
PATIENCE_S = 60.0  # seconds during which a request is retried
ANSWER_S = 20.0  # timeout of one attempt in seconds; it must leave time for retries
# options of the HTTP client; all others are options of the store
CLIENT = ("allow_http", "allow_invalid_certificates", "connect_timeout", "timeout", "pool_idle_timeout", "proxy_url")
PART = 16 << 20  # bytes per part or range; objects larger than two parts are transferred in parallel
_AT_ONCE = 500  # objects per delete request


class StoredObject(NamedTuple):
    """The content of an object, and its version for conditional puts."""

    content: Any  # a buffer of bytes
    version: str


@dataclass
class ObjectClient:
    """A client for all objects below one URL. It is thread-safe, but a forked process must create a new one.

    Args:
        url: The URL; the names of objects are relative to it.
        options: Settings of the store and of the HTTP client. They may contain secrets.
        label: The purpose of the store. Messages begin with it.
        requests: The number of requests so far, by kind: put, get, list or delete.
    """

    url: str
    options: Mapping[str, str] = field(repr=False)
    label: str = "state store"
    requests: Counter[str] = field(default_factory=Counter)
    # by object: contents that a failed `rewrite` may have stored
    _unanswered: dict[str, list[bytes]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        try:
            import obstore
            import obstore.exceptions
        except ModuleNotFoundError:
            raise StartError(f"{self.label} {self.url}: {EXTRA}", Topic.NOT_INSTALLED) from None
        self._obs: Any = obstore
        self._errors: Any = obstore.exceptions
        self._store = self._build_store()

    def _build_store(self) -> Any:
        settings = {k: v for k, v in self.options.items() if k not in CLIENT}
        client: dict[str, Any] = {"connect_timeout": "5s", "timeout": f"{ANSWER_S:g}s"}
        client |= {k: v for k, v in self.options.items() if k in CLIENT}
        endpoints = [v for k, v in settings.items() if "endpoint" in k]
        endpoints += [
            v for k in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3") if (v := os.environ.get(k))
        ]
        if any(e.startswith("http://") for e in endpoints):
            client.setdefault("allow_http", "true")
        retry = {
            "max_retries": 10,
            "retry_timeout": timedelta(seconds=PATIENCE_S),
            "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2},
        }
        try:
            return self._obs.store.from_url(self.url, config=settings, client_options=client, retry_config=retry)
        except (self._errors.BaseError, ValueError, TypeError) as error:
            raise StartError(
                f"{self.label} {self.url}: {_short_reason(error)}; check the URL and its options", Topic.OBJECT_STORE
            ) from None

    # -- requests ------------------------------------------------------------------------------------------------

    def put(self, file: str, content: Any) -> None:
        """Write an object. Its name must be unique, so that retries are harmless. Raises EpochError."""
        self.requests["put"] += 1
        large = len(content) > 2 * PART

        def put() -> None:
            self._obs.put(self._store, file, content, use_multipart=large, chunk_size=PART, max_concurrency=4)

        with self._wrapped_errors(f"{file} cannot be written", kind=EpochError):
            self._retry(put, _is_interrupted)

    def create(self, file: str, content: bytes) -> str | None:
        """Put an object if it does not exist. Return its version, or None if another writer created it.

        Raises EpochError.
        """
        return self._conditional(file, content, "create")

    def replace(self, file: str, content: bytes, version: str) -> str | None:
        """Put an object if its stored version is `version`.

        Return the new version, or None if the object is missing or has another version. Raises EpochError.
        """
        return self._conditional(file, content, json.loads(version))

    def rewrite(self, file: str, content: bytes, version: str | None) -> str | None:
        """Put an object if its stored version is `version` (None: if it does not exist).

        Content from an earlier `rewrite` of this client that was stored despite an error counts as `version`, too.

        Returns:
            The new version, or None if another writer has replaced the object.

        Raises:
            EpochError, StateError: It is unknown whether the content was stored.
        """
        while True:
            try:
                new_version = self.create(file, content) if version is None else self.replace(file, content, version)
                stored = self._get_or_none(file) if new_version is None and file in self._unanswered else None
            except SlackwaterError:
                self._unanswered.setdefault(file, []).append(content)
                raise
            if stored is not None and bytes(stored.content) in self._unanswered[file]:
                version = stored.version
                continue
            self._unanswered.pop(file, None)
            return new_version

    def _conditional(self, file: str, content: bytes, mode: Any) -> str | None:
        """Put an object if a condition holds, and return its new version, or None if the condition does not hold.

        A rejected retry counts as success if the object has this content, because an earlier attempt stored it.

        `mode`: "create" if the object must not exist, or the parsed version that it must have.
        """
        ends = time.monotonic() + PATIENCE_S
        while True:
            self.requests["put"] += 1
            try:
                return _version(self._obs.put(self._store, file, content, mode=mode, use_multipart=False))
            except (self._errors.AlreadyExistsError, self._errors.PreconditionError, FileNotFoundError) as error:
                if _no_bucket(str(error)):
                    raise self._wrap_error(error, f"{file} cannot be written", EpochError) from None
            except Exception as error:
                if not _is_transient(str(error)) or time.monotonic() > ends:
                    raise self._wrap_error(error, f"it is unknown whether {file} was written", EpochError) from None
            stored = self._get_or_none(file)
            if stored is not None and bytes(stored.content) == content:
                return stored.version
            untouched = (
                stored is None if mode == "create" else stored is not None and json.loads(stored.version) == mode
            )
            if not untouched:
                return None
            if time.monotonic() > ends:
                raise EpochError(
                    f"{self.label} {self.url}: the store repeatedly refused to write {file}, although no other runner "
                    "has written this file; committed epochs are safe; start again",
                    Topic.OBJECT_STORE,
                )
            time.sleep(0.1)

    def _get_or_none(self, file: str) -> StoredObject | None:
        try:
            return self.get(file)
        except FileNotFoundError:
            return None

    def get(self, file: str, size: int | None = None) -> StoredObject:
        """Read an object. Raises FileNotFoundError if it is missing, and StateError for other failures.

        `size`: the size in bytes, if known. Large objects are then read in parallel, and returned without a version.
        """
        with self._wrapped_errors(f"{file} cannot be read", file):
            if size is not None and size > 2 * PART:
                starts = range(0, size, PART)
                self.requests["get"] += len(starts)
                ends = [min(start + PART, size) for start in starts]
                parts = self._obs.get_ranges(self._store, file, starts=list(starts), ends=ends, coalesce=0)
                return StoredObject(b"".join(memoryview(p) for p in parts), "")
            self.requests["get"] += 1
            response = self._obs.get(self._store, file)
            return StoredObject(memoryview(response.bytes()), _version(response.meta))

    def has(self, file: str) -> bool:
        """Return whether an object exists. Raises StateError."""
        self.requests["get"] += 1
        try:
            with self._wrapped_errors(f"{file} cannot be checked", file):
                self._obs.head(self._store, file)
        except FileNotFoundError:
            return False
        return True

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the size in bytes of each object below a folder, by name relative to the folder. Raises StateError.

        Listing costs one request per thousand objects.
        """
        prefix = f"{folder}/" if folder else ""
        with self._wrapped_errors(f"{folder or 'it'} cannot be listed"):
            objects = self._obs.list(self._store, prefix or None).collect()
        self.requests["list"] += 1 + len(objects) // 1000
        return {str(o["path"]).removeprefix(prefix): int(o["size"]) for o in objects}

    def list_folder(self, folder: str = "") -> tuple[list[str], list[str]]:
        """Return the names of the subfolders and of the objects directly in a folder, both sorted. Raises StateError."""
        self.requests["list"] += 1
        prefix = f"{folder}/" if folder else ""
        with self._wrapped_errors(f"{folder or 'it'} cannot be listed"):
            listing = self._obs.list_with_delimiter(self._store, prefix or None)
        paths = listing["common_prefixes"], [o["path"] for o in listing["objects"]]
        folders, files = (sorted(str(p).rstrip("/").removeprefix(prefix) for p in names) for names in paths)
        return folders, files

    def delete(self, files: Collection[str]) -> None:
        """Delete objects, ignoring missing ones. Raises StateError."""
        remaining = sorted(files)
        while remaining:
            chunk, remaining = remaining[:_AT_ONCE], remaining[_AT_ONCE:]
            self.requests["delete"] += 1
            try:
                with self._wrapped_errors("objects cannot be deleted", ""):
                    self._retry(lambda chunk=chunk: self._obs.delete(self._store, chunk))  # type: ignore[misc]
            except FileNotFoundError:  # Azure stops at the first missing object
                for file in chunk:
                    self.requests["delete"] += 1
                    with suppress(FileNotFoundError), self._wrapped_errors(f"{file} cannot be deleted", file):
                        self._obs.delete(self._store, file)

    def copy(self, file: str, to: str) -> None:
        """Copy an object within the store. Raises FileNotFoundError or StateError."""
        self.requests["put"] += 1
        with self._wrapped_errors(f"{file} cannot be copied", file):
            self._retry(lambda: self._obs.copy(self._store, file, to))

    def _retry(self, work: Callable[[], object], is_transient: Callable[[str], bool] | None = None) -> None:
        """Run an idempotent request and retry it after transient errors. obstore itself retries only some of these.

        `is_transient`: a function that classifies an error by its text; the default excludes errors that persist until someone fixes the cause.
        """
        is_transient = is_transient or _is_transient
        ends = time.monotonic() + PATIENCE_S
        while True:
            try:
                work()
                return
            except Exception as error:
                is_missing = isinstance(error, FileNotFoundError) and is_transient is _is_transient
                if is_missing or not is_transient(str(error)) or time.monotonic() > ends:
                    raise
                time.sleep(0.1)

    @contextmanager
    def _wrapped_errors(
        self, problem: str, file: str | None = None, kind: type[SlackwaterError] = StateError
    ) -> Iterator[None]:
        """Convert each error raised in the block into one that can be shown to users.

        `problem`: what failed, for the message. `file`: the object that is read; if it is missing although the bucket
        exists, raise FileNotFoundError. `kind`: the class of all other errors.
        """
        try:
            yield
        except Exception as error:
            if file is not None and isinstance(error, FileNotFoundError) and not _no_bucket(str(error)):
                raise FileNotFoundError(2, "No such object", f"{self.url}/{file}") from None
            raise self._wrap_error(error, problem, kind) from None

    def _wrap_error(self, error: Exception, problem: str, kind: type[SlackwaterError]) -> SlackwaterError:
        """Return the error that replaces a client error. It states the problem, the reason and the remedy on one line.

        `kind`: the class of the returned error, unless the bucket or the credentials are wrong.
        """
        if isinstance(error, SlackwaterError):
            return error
        text = str(error)
        bucket = urlsplit(self.url).netloc.partition("@")[0]
        for is_it, message in (
            (_no_bucket, f'there is no bucket "{bucket}"; create it, or correct the path'),
            (_no_credentials, f"no credentials were found ({_short_reason(error)}); {_CREDENTIALS}"),
            (_denied, f"access was denied ({_status(text)}); {_RIGHTS}"),
        ):
            if is_it(text):
                return StateError(f"{self.label} {self.url}: {message}", Topic.OBJECT_STORE)
        return kind(
            f"{self.label} {self.url}: {problem} ({_short_reason(error)}); committed epochs are safe; check that the "
            "store can be reached, and start again",
            Topic.OBJECT_STORE,
        )


def _version(attributes: Mapping[str, Any]) -> str:
    """Return the ETag and the version of an object as JSON, as far as the store provides them."""
    return json.dumps({k: attributes[k] for k in ("e_tag", "version") if attributes.get(k) is not None})


_CREDENTIALS = (
    "set them in the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, GOOGLE_APPLICATION_CREDENTIALS, "
    "AZURE_STORAGE_ACCOUNT_KEY), by the machine's role, or in the config's options"
)
_RIGHTS = "check the credentials, and that they allow get, put, list and delete below this URL"


def _no_bucket(text: str) -> bool:
    return any(name in text for name in ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist"))


def _no_credentials(text: str) -> bool:
    places = ("169.254.169.254", "metadata.google.internal", "/latest/api/token", "/latest/meta-data", "169.254.170.2")
    return any(storage in text for storage in places) or "issing credential" in text


def _denied(text: str) -> bool:
    return bool(
        re.search(r"\b(401|403) (Unauthorized|Forbidden)|AccessDenied|AuthenticationFailed|InvalidAccessKeyId", text)
    )


def _status(text: str) -> str:
    code = re.search(r"<Code>([A-Za-z]+)</Code>", text)
    return code[1] if code else "403 Forbidden"


def _is_transient(text: str) -> bool:
    """Return whether a retry may help. It cannot if the bucket or the credentials are missing, or access is denied."""
    return not (_no_bucket(text) or _denied(text) or _no_credentials(text))


def _is_interrupted(text: str) -> bool:
    """Return whether an error text reports an incomplete multipart upload, or a conflict with another upload."""
    return any(code in text for code in ("RequestTimeout", "IncompleteBody", "NoSuchUpload", "OperationAborted"))


def _short_reason(error: Exception) -> str:
    """Return the message of an error as one line, without secrets or client internals."""
    text = str(error).partition("\n\nDebug source:")[0]
    code = re.search(r"<Code>([A-Za-z]+)</Code>", text)
    text = " ".join(text.partition("<?xml")[0].split())
    text = re.sub(r"^Generic \w+ error: ", "", text).rstrip(": ")
    return mask_secrets(f"{text}: {code[1]}" if code else text)[:300]
