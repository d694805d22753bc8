"""Names, texts and numbers that often break parsers, for all kinds of hostile input."""

from __future__ import annotations

import random

NAMES = (
    *(
        "a b",
        "a.b",
        "a'b",
        'a"b',
        "a`b",
        "a%b",
        "%s",
        "%(x)s",
        "a;b",
        "a\\b",
        "a\nb",
        "a\tb",
        "ä",
        "名",
        "😀",
        "A",
        "a",
        "select",
    ),
    *(
        "from",
        "order",
        "null",
        "true",
        "token",
        "ordinal",
        "epoch",
        "__h",
        "__start",
        "_epoch",
        "_status",
        "window_start",
        "count",
    ),
    *(
        "x" * 63,
        "x" * 64,
        "x" * 255,
        "ä" * 40,
        " a",
        "a ",
        "1",
        "-",
        "--",
        "/*",
        "$1",
        "${X}",
        "{}",
        "{0}",
        "\u202e",
        "\u200b",
        "é",
        "é",
    ),
)
TEXTS = (
    *(
        "",
        " ",
        "\0",
        "\n",
        "'",
        '"',
        "\\",
        "%",
        "NULL",
        "null",
        "NaN",
        "Infinity",
        "-0",
        "0x10",
        "1e999",
        "١",
        "true",
        "\ufeff",
        "😀",
    ),
    *(
        "a" * 10_000,
        "../..",
        "/etc/passwd",
        "${HOME}",
        "$${X}",
        "{{7*7}}",
        "<script>",
        "\r\n\r\n",
        "2024",
        "10:15",
        "T10:15:00Z",
        "\x7f",
    ),
)
NUMBERS = (0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64, 10**23, 10**400, -(10**23))


def draw_text(rng: random.Random) -> str:
    return (
        rng.choice([*TEXTS, *NAMES])
        if rng.random() < 0.8
        else "".join(map(chr, rng.choices(range(1, 0x2FF), k=rng.randint(1, 20))))
    )


def damage_text(rng: random.Random, whole: str) -> str:
    """Remove, double, reverse or replace pieces of a text."""
    for _ in range(rng.choice([1, 1, 2, 4])):
        start, end = sorted(rng.choices(range(len(whole) + 1), k=2))
        end = min(end, start + rng.choice([1, 3, 30]))
        piece = whole[start:end]
        whole = (
            whole[:start]
            + rng.choice(["", piece * 2, draw_text(rng)[:200], piece[::-1], str(rng.choice(NUMBERS))[:50]])
            + whole[end:]
        )
    return whole


def assert_slackwater_error(error: BaseException) -> None:
    """Assert that an error is a Slackwater error with non-empty lines and without a stack trace."""
    from slackwater.errors import ConfigError, SlackwaterError

    assert isinstance(error, SlackwaterError), repr(error)
    lines = list(error.problems) if isinstance(error, ConfigError) else [str(error)]
    for line in lines:
        assert line.strip(), "an error without a word"
        assert "Traceback" not in line, line
        assert len(line) < 5000, f"{len(line)} characters: {line[:100]}"
