"""What must not leave: values from the environment, passwords in URLs, settings whose name says so.

    ${NAME} in a config ──▶ remember ──▶ masked ◀── every error of ours, every log line, plans, notices
    url, options                         "… token = '${NAME}' …"

A config keeps the spelling of its values (`config.spelling.Interpolated`), but texts are put together from them, and Spark quotes
the SQL in its own errors: so the values are known by themselves, for the life of the process. What is a row is left as it is,
wherever it is shown: it is the user's data. Names of pipelines and sources are none: directories and metrics are called by them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

HIDDEN = "***"
SHORT, LONG = (
    4,
    8,
)  # characters: shorter ones are in every other word; from this length on they are replaced within words too
NAMED = (
    "password",
    "passwd",
    "secret",
    "token",
    "jaas",
    ".key",
    "credential",
    "access_key",
    "account_key",
    "sas_key",
    "encryption_key",
    "customer_key",
    "bearer",
    "sasl.username",
)
_COMMON = re.compile(r"[\d.,_+-]{0,7}[A-Za-z]{0,3}|true|false|none|null|(?i:localhost|127\.0\.0\.1)(:\d+)?")
_PASSWORD = re.compile(r"(?:[?&\s]|^)password=('(?:[^'\\]|\\.)*'|[^&\s#]*)")

_secrets: dict[str, str] = {}  # value -> what is shown for it
_pattern: re.Pattern[str] | None = None


def remember_secret(value: str, shown: str = HIDDEN) -> None:
    """Show `shown` in the place of a value from now on; of one of several lines also for each of them."""
    global _pattern
    for part in {value, *(line.strip() for line in value.splitlines())}:
        if len(part) >= SHORT and not _COMMON.fullmatch(part) and part not in _secrets:
            _secrets[part] = shown
            _pattern = None
    if "://" in value or "password=" in value:
        remember_url(value)


def remember_url(url: str) -> None:
    """The password in an address or connection string, also in one that is written wrong."""
    passwords = [match[1].strip("'") for match in _PASSWORD.finditer(url)]
    user, separator, _ = url.partition("://")[2].rpartition("@")
    if separator and ":" in user:
        passwords.append(user.partition(":")[2])
        passwords += re.split("[/@]", passwords[-1])  # an error of somebody who took the address apart there
    for part in passwords:
        for spelled in {part, unquote(part)}:
            if spelled and spelled not in _secrets:
                remember_secret(spelled) if "://" not in spelled else None


def remember_settings(settings: Mapping[str, object]) -> None:
    """The values of settings whose name says that they are secret."""
    for name, value in settings.items():
        if isinstance(value, str) and any(part in name.lower() for part in NAMED):
            remember_secret(value, getattr(value, "raw", HIDDEN))
            for quoted in re.findall(r"(?i)password\s*=\s*[\"']([^\"']*)", value):  # of a JAAS line
                remember_secret(quoted)


def mask_secrets(text: str) -> str:
    """A text without the values that are known."""
    global _pattern
    if not _secrets:
        return text
    if _pattern is None:
        _pattern = re.compile("|".join(_alternatives(sorted(_secrets, key=len, reverse=True))))
    return _pattern.sub(lambda match: _secrets[match[0]], text)


def _alternatives(values: Iterable[str]) -> Iterable[str]:
    for value in values:
        plain = re.escape(value)
        yield plain if len(value) >= LONG else rf"(?<![A-Za-z0-9]){plain}(?![A-Za-z0-9])"


def has_secrets() -> bool:
    return bool(_secrets)


def forget_secrets() -> None:
    """Begin anew, for tests."""
    global _pattern
    _secrets.clear()
    _pattern = None
