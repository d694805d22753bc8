"""The pages on messages: an index, and a page per group of families."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from docgen.error_and_warning_sources import CLASSES, collect_config_mistakes, collect_messages
from docgen.error_explanations import ERRORS, WARNINGS, ErrorExplanation
from docgen.markdown import MADE, format_inline_code, rewrite_links_for_folder
from slackwater.config.stage import Transform
from slackwater.errors import Topic

_TITLES: Mapping[str, str] = {
    "messages/config.md": "Messages about the config",
    "messages/state.md": "Messages about the state",
    "messages/services.md": "Messages about services and packages",
    "messages/data.md": "Messages about sources and targets",
    "messages/commands.md": "Messages of commands and Python calls",
    "messages/run.md": "Messages of a run",
    "messages/warnings.md": "Warnings",
}
_MISTAKES = "messages/config-keys.md"
_GROUPS: Mapping[str, Sequence[ErrorExplanation]] = {
    page: [t for t in (*ERRORS, *WARNINGS) if t.page == page] for page in _TITLES
}
_BACK = "All messages: [messages](../messages.md). `…` stands for a value."


def build_message_index_page() -> str:
    """Return the index: each topic with its page."""
    lines = [
        "# Messages",
        "",
        MADE,
        "",
        "These pages explain every error and warning of Slackwater, grouped by topic. To look up a message, follow the link below that",
        "describes the problem, or search the pages for words of the message that do not vary.",
        "",
        "An error is a single line; if a config has several mistakes, each of them has a line. The line says what is wrong and where, which",
        "value was found, which value was expected, and what to do. On a terminal, the line after it names the section of these pages that",
        "explains the error. In Python, the attribute `documented` of the exception names the same section. The `slackwater` command exits with",
        "code 2 if the config or the command line is invalid, and with code 1 after the other errors on these pages ([all exit codes](commands.md)).",
    ]
    for page, topics in _GROUPS.items():
        lines += ["", f"## {_TITLES[page]}", ""]
        lines += [f"- [{t.title}]({page}#{t.anchor})" for t in topics]
        if page == "messages/config.md":
            lines.append(f"- [Mistakes in single keys]({_MISTAKES})")
    return "\n".join(lines) + "\n"


def build_message_group_page(page: str) -> str:
    """Return a page with the topics of one group, and the texts of their messages."""
    all_messages = collect_messages()
    lines = [f"# {_TITLES[page]}", "", MADE, "", _BACK]
    if page == "messages/warnings.md":
        lines += ["", "A warning is a line of the log. The pipeline continues."]
    for topic in _GROUPS[page]:
        lines += ["", f"## {topic.title}", "", rewrite_links_for_folder(topic.means)]
        lines += ["", f"**What to do.** {rewrite_links_for_folder(topic.do)}"]
        of_topic = [m for m in all_messages if m.belongs_to(topic)]
        if texts := sorted({m.text for m in of_topic if m.text}):
            kinds = " and ".join(format_inline_code(kind) for kind in CLASSES if any(m.kind == kind for m in of_topic))
            lines += ["", *([f"{kinds}:", ""] if kinds else []), *(f"- {format_inline_code(t)}" for t in texts)]
        if topic.topic is Topic.CONFIG_WRONG:
            lines += ["", f"[Mistakes in single keys]({_MISTAKES.partition('/')[2]}) are listed by table."]
    return "\n".join(lines) + "\n"


HEADINGS: Mapping[str, str] = {  # where the keys are documented that a module of `config` is about
    "aggregation": "aggregations",
    "custom_aggregator": "aggregations",
    "connection": "connections",
    "schema_ddl": "sources",
    **{step.__module__.rpartition(".")[2]: step.DOC_LINK.partition("#")[2] for step in Transform.STEPS.values()},
    "source": "sources",
    "sql": "transform",
    "static_sql_check": "transform",
    "column_checks": "transform",
    "step_base": "windows",
    "target": "target-and-dead-letters",
    "stage": "transform",
    "identifier_checks": "target-and-dead-letters",
}


def build_config_mistakes_page() -> str:
    """Return the page with the mistakes of single keys, by the heading where the keys are documented."""
    texts_by_heading: dict[str, list[str]] = {}
    for module, texts in collect_config_mistakes().items():
        texts_by_heading.setdefault(HEADINGS.get(module, "the-pipeline"), []).extend(texts)
    lines = [
        "# Mistakes in single keys",
        "",
        MADE,
        "",
        "A message begins with the name of the key. Correct the key: `slackwater check FILE` lists all mistakes at once, and",
        "[an editor](../write-config.md#in-an-editor) marks most of them while you type. `…` stands for a value.",
    ]
    for heading, texts in sorted(texts_by_heading.items()):
        title = heading.replace("-", " ").capitalize()
        lines += ["", f"## {title}", "", f"Keys of [{title.lower()}](../configuration.md#{heading}):", ""]
        lines += [f"- {format_inline_code(t)}" for t in sorted(set(texts))]
    return "\n".join(lines) + "\n"


PAGES: Mapping[str, Callable[[], str]] = {
    "messages.md": build_message_index_page,
    **{page: partial(build_message_group_page, page) for page in _GROUPS},
    _MISTAKES: build_config_mistakes_page,
}
