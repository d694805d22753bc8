"""The pages on commands: an index, and a page per group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, get_type_hints

import typer

from docgen.markdown import MADE, escape_table_cell, extract_first_sentence, format_inline_code
from slackwater.cli.main import app

_GROUPS: Mapping[str, tuple[str, tuple[str, ...]]] = {  # page: title, commands
    "commands/write.md": (
        "Commands to write and test a pipeline",
        ("init", "check", "explain", "plan", "schema", "test", "demo", "demo-kafka"),
    ),
    "commands/run.md": ("Commands to run a pipeline", ("run", "backfill", "prepare")),
    "commands/inspect.md": ("Commands to inspect a pipeline and its results", ("show", "why", "ui", "serve", "diff")),
    "commands/outbox.md": ("Commands for dead letters and the outbox", ("dlq", "outbox")),
    "commands/state.md": ("Commands for the state", ("state",)),
}
_GUIDES: Mapping[str, tuple[str, str]] = {  # a command, or the beginning of several: the page that explains its use
    "slackwater init": ("Start from your own data", "first-day.md"),
    "slackwater check": ("Write and check a config", "write-config.md"),
    "slackwater plan": ("Change a pipeline and keep its state", "state/change.md"),
    "slackwater test": ("Write pipeline tests", "testing.md"),
    "slackwater run": ("Run a pipeline", "operations.md"),
    "slackwater backfill": ("Fill a target from history", "backfill.md"),
    "slackwater prepare": ("Start faster", "operations.md#start-faster"),
    "slackwater show": ("See the results", "show.md"),
    "slackwater why": ("No output yet", "how-no-output.md"),
    "slackwater ui": ("Watch a pipeline on its page", "ui.md"),
    "slackwater serve": ("Serve the state over HTTP", "state/serve.md"),
    "slackwater diff": ("Compare two outputs", "diff.md"),
    "slackwater dlq": ("Late rows and dead letters", "late-data.md"),
    "slackwater dlq replay": ("Replay dead letters", "how-replay.md"),
    "slackwater outbox": ("Publish or skip an epoch that its target rejects", "outbox.md"),
    "slackwater state compact": ("Measure and shrink the state", "state/size.md"),
    "slackwater state export": ("Query the state", "state/query.md"),
    "slackwater state find-sessions": ("Query the state", "state/query.md"),
    "slackwater state fork": ("Rename or copy a pipeline", "state/rename.md"),
    "slackwater state get": ("Query the state", "state/query.md"),
    "slackwater state history": ("Measure and shrink the state", "state/size.md"),
    "slackwater state ls": ("Query the state", "state/query.md"),
    "slackwater state migrate": ("Format of the state", "state/format.md#migrate-to-another-format"),
    "slackwater state reset": ("Reset the offsets of a source", "state/offsets.md"),
    "slackwater state show": ("Query the state", "state/query.md"),
    "slackwater state sizes": ("Measure and shrink the state", "state/size.md"),
    "slackwater state verify": ("Check that the state is sound", "state/verify.md"),
}

_INTRODUCTIONS: Mapping[str, tuple[str, ...]] = {  # first lines of a page
    "commands/outbox.md": (
        "`slackwater dlq` shows and replays [dead letters](../dead-letters.md), which are rows that could not be used or were",
        "late. [Replay dead letters](../how-replay.md) explains when and how to use it.",
        "",
        "`slackwater outbox` shows, publishes or skips an epoch that is committed but not published yet. You need it if a target",
        "[rejects an epoch](../outbox.md).",
        "",
    ),
    "commands/state.md": (
        "These commands inspect, check, copy and change the state of a pipeline, which is the data that it keeps between runs.",
        "[State](../state.md) gives an overview of the tasks, and describes which locations `WHERE` may name. In the descriptions,",
        "an *open* window still receives rows, and a *retained* window is closed but can still be corrected by late rows.",
        "",
    ),
}


def index_page() -> str:
    """Return the index: each command with the first sentence of its help."""
    lines = [
        "# Every command",
        "",
        MADE,
        "",
        "This page lists all commands by task. Each command links to a description of its arguments and options, which",
        "`slackwater COMMAND --help` also prints.",
        "",
        "All commands use the same exit codes. If a code has a more specific meaning for a command, the command's description",
        "says so.",
        "",
        "| exit code | meaning |",
        "|---|---|",
        "| 0 | the command succeeded |",
        "| 1 | the command failed, or `plan`, `test`, `diff` or `state verify` found a problem or a difference |",
        "| 2 | the config or the command line is invalid |",
        "| 70 | an internal error occurred, which is a bug in Slackwater |",
        "| 130, 143 | a signal (SIGINT or SIGTERM) ended the command immediately |",
    ]
    for page, (title, _) in _GROUPS.items():
        lines += ["", f"## {title}", "", "| command | purpose |", "|---|---|"]
        for path, command in _page_commands(page):
            anchor = "-".join(path)
            lines.append(
                f"| [{format_inline_code(' '.join(path))}]({page}#{anchor}) | {escape_table_cell(extract_first_sentence(command.help or ''))} |"
            )
    return "\n".join(lines) + "\n"


def group_page(page: str) -> str:
    """Return a page with the commands of one group."""
    lines = [
        f"# {_GROUPS[page][0]}",
        "",
        MADE,
        "",
        *_INTRODUCTIONS.get(page, ()),
        "See [Every command](../commands.md) for all commands and exit codes.",
    ]
    for path, command in _page_commands(page):
        lines += _command_section(command, path)
    return "\n".join(lines) + "\n"


def _page_commands(page: str) -> Iterator[tuple[list[str], Any]]:
    """Yield the commands of a page with their paths."""
    top = getattr(typer.main.get_command(app), "commands")  # noqa: B009
    grouped = {name for _, names in _GROUPS.values() for name in names}
    missing = {name for name, command in top.items() if not command.hidden} - grouped
    assert not missing, f"commands without a page: {missing}"
    for name in _GROUPS[page][1]:
        yield from _walk_subcommands(top[name], ["slackwater", name])


def _walk_subcommands(command: Any, path: list[str]) -> Iterator[tuple[list[str], Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name in sorted(inner):
        if not inner[name].hidden:
            yield from _walk_subcommands(inner[name], [*path, name])


def _command_section(command: Any, path: list[str]) -> Iterator[str]:
    yield from ("", f"## {' '.join(path)}", "", (command.help or "").strip().replace("\n\n", "\n"))
    if guide := _guide_page(path):
        yield from ("", f"For background and examples, see [{guide[0]}](../{guide[1]}).")
    hints = get_type_hints(command.callback)
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help" and not p.hidden]
    usage = [*path, *("[OPTIONS]" if options else "",), *(_argument_usage(a) for a in arguments)]
    yield from ("", "```", " ".join(filter(None, usage)), "```")
    documented_parameters = [
        (_argument_usage(a), _parameter_meaning(a)) for a in arguments if getattr(a, "help", None)
    ] + [(_option_usage(o, hints), _parameter_meaning(o)) for o in options]
    if documented_parameters:
        yield from ("", "| argument or option | meaning |", "|---|---|")
        yield from (
            f"| {format_inline_code(name)} | {escape_table_cell(text or '')} |" for name, text in documented_parameters
        )


def _guide_page(path: Sequence[str]) -> tuple[str, str] | None:
    """Return the title and the path of the page that explains a command, or None if no single page does."""
    return _GUIDES.get(" ".join(path)) or _GUIDES.get(" ".join(path[:2]))


def _parameter_meaning(option: Any) -> str:
    """Return the help of a parameter, its environment variable, its default and whether it is required, as in `--help`."""
    text = option.help or ""
    if option.envvar:
        text += f" The environment variable {format_inline_code(option.envvar)} has the same effect."
    if not getattr(option, "is_flag", False) and option.default not in (None, "", ()):
        text += f" Default: {format_inline_code(str(option.default))}."
    return f"{text} Required." if option.required else text


def _argument_usage(argument: Any) -> str:
    name = (argument.metavar or argument.name or "").upper().replace("_", "-").strip("[]")
    return name if argument.required else f"[{name}]"


def _option_usage(option: Any, hints: Mapping[str, Any]) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    if option.is_flag:
        return names
    annotation = str(hints.get(option.name, ""))
    return f"{names} {option.metavar or ('NUMBER' if 'int' in annotation or 'float' in annotation else 'PATH' if 'Path' in annotation else 'TEXT')}"


PAGES: Mapping[str, Callable[[], str]] = {
    "commands.md": index_page,
    **{page: partial(group_page, page) for page in _GROUPS},
}
