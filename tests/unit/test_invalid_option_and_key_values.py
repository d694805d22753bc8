"""Invalid values of options and keys are refused, never an internal error."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.laws.fuzzers import fuzz_cli_commands
from tests.support.config_mistakes import BASE, expect_config_problems, replace_text

HUGE = "0x" + "f" * 5000


@pytest.mark.parametrize("value", [HUGE, f"[{HUGE}]", f"{{ a = {{ b = {HUGE} }} }}", "0o" + "7" * 9000])
@pytest.mark.parametrize("key", ["gap_ms", "group_by", "nosuch", "emit_metadata"])
def test_config_number_beyond_64_bits_is_reported_as_one_problem(key: str, value: str) -> None:
    text = replace_text(
        BASE, 'gap_ms = "30s"\n' if key == "gap_ms" else 'event_time_column = "ts"\n', f"{key} = {value}\n"
    )
    text = text.replace('group_by = ["user_id"]\n', "") if key == "group_by" else text
    (problem,) = expect_config_problems(text)
    assert problem.startswith(f"transform.window.{key}")
    assert problem.endswith("found a number with more than 64 bits, expected at most 64 bits")


@pytest.mark.parametrize(
    "line",
    [
        ("show", "law.toml", "--limit", "9" * 20),
        ("show", "law.toml", "--limit", "9" * 5000),
        ("state", "sizes", ".", "--hot-keys", "99999999999"),
        ("state", "export", ".", "o.csv", "--where", "u = '\udcff'"),
        ("state", "show", ".", "--at", "9" * 5000),
        ("check", "\udcff.toml"),
        ("dlq", "show", "law.toml", "--limit", "9" * 30),
    ],
)
def test_command_refuses_an_invalid_option_value(line: tuple[str, ...], tmp_path: Path) -> None:
    assert fuzz_cli_commands.run_command_line(line, tmp_path) == "refused"


def test_every_numeric_option_has_a_minimum_and_a_maximum() -> None:
    commands = fuzz_cli_commands.commands_by_name()
    numbers = [
        (names, parameter)
        for names, command in commands.items()
        for parameter in command.params
        if any(word in str(parameter.type_descriptor.annotation) for word in ("int", "float"))
    ]
    assert len(numbers) > 12
    unbounded = [(names, p) for names, p in numbers if p.max is None or p.min is None]
    assert {p.name for _, p in unbounded} == {"status_every", "tolerance"}  # the next test covers these


@pytest.mark.parametrize(
    "value", ["nan", "-nan", "inf", "-inf", "Infinity", "-1", "-1e-9", "1e400", "x", "", "9" * 5000]
)
@pytest.mark.parametrize(
    ("line", "option"), [(("run", "missing.toml"), "--status-every"), (("diff", "a", "b"), "--tolerance")]
)
def test_float_option_error_names_the_option_and_the_invalid_value(
    line: tuple[str, ...], option: str, value: str, tmp_path: Path
) -> None:
    lines: list[str] = []
    assert fuzz_cli_commands.run_command_line([*line, f"{option}={value}"], tmp_path, lines.append) == "refused"
    shown = " ".join(lines[0].replace("│", " ").split())
    assert f"Invalid value for '{option}': found {value[:40]}".strip() in shown
    assert "expected a number from 0 to 1,000,000,000" in shown


def test_only_status_every_and_tolerance_are_float_options() -> None:
    floats = {
        p.opts[0]
        for command in fuzz_cli_commands.commands_by_name().values()
        for p in command.params
        if "float" in str(p.type_descriptor.annotation)
    }
    assert floats == {"--status-every", "--tolerance"}
