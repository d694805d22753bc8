"""Secrets that must not be shown: values from the environment, passwords in URLs, settings like `password`.

    ${NAME} in a config ──▶ remember ──▶ masked ◀── errors, log lines, plans and notices of Slackwater
    url, options                         "… token = '${NAME}' …"

A config preserves the spelling of its values (`config.error_text.EnvString`). However, messages are built from the
values, and Spark's errors quote the SQL. Therefore, the values are registered for the lifetime of the process. Rows are
never masked, because they are the user's data. Names of pipelines and sources are not secrets, since directories and
metrics are named after them.

May import: nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

HIDDEN = "***"
SHORT, LONG = 4, 8  # lengths: values shorter than SHORT are not masked, values from LONG on also within words
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

_secrets: dict[str, str] = {}  # the text to show, by secret value
_pattern: re.Pattern[str] | None = None


def remember_secret(value: str, replacement: str = HIDDEN) -> None:
    """Mask a value, and each of its lines, with `replacement` from now on."""
    global _pattern
    for part in {value, *(line.strip() for line in value.splitlines())}:
        if len(part) >= SHORT and not _COMMON.fullmatch(part) and part not in _secrets:
            _secrets[part] = replacement
            _pattern = None
    if "://" in value or "password=" in value:
        remember_url(value)


def remember_url(url: str) -> None:
    """Mask the password in a URL or connection string from now on, even if the URL is malformed."""
    passwords = [match[1].strip("'") for match in _PASSWORD.finditer(url)]
    user, separator, _ = url.partition("://")[2].rpartition("@")
    if separator and ":" in user:
        passwords.append(user.partition(":")[2])
        passwords += re.split("[/@]", passwords[-1])  # libraries may split the URL there and show part of it
    for part in passwords:
        for spelled in {part, unquote(part)}:
            if spelled and spelled not in _secrets:
                remember_secret(spelled) if "://" not in spelled else None


def remember_settings(settings: Mapping[str, object]) -> None:
    """Mask the values of settings whose names contain an entry of NAMED, such as `password`, from now on."""
    for name, value in settings.items():
        if isinstance(value, str) and any(part in name.lower() for part in NAMED):
            remember_secret(value, getattr(value, "raw", HIDDEN))
            for quoted in re.findall(r"(?i)password\s*=\s*[\"']([^\"']*)", value):  # in a JAAS line
                remember_secret(quoted)


def mask_secrets(text: str) -> str:
    """Return `text` with all registered values masked."""
    global _pattern
    if not _secrets:
        return text
    if _pattern is None:
        _pattern = re.compile("|".join(_alternatives(sorted(_secrets, key=len, reverse=True))))
    return _pattern.sub(lambda match: _secrets[match[0]], text)


def _alternatives(values: Iterable[str]) -> Iterable[str]:
    for value in values:
        escaped = re.escape(value)
        yield escaped if len(value) >= LONG else rf"(?<![A-Za-z0-9]){escaped}(?![A-Za-z0-9])"


def has_secrets() -> bool:
    return bool(_secrets)


def forget_secrets() -> None:
    """Forget all registered secrets. Used by tests."""
    global _pattern
    _secrets.clear()
    _pattern = None
