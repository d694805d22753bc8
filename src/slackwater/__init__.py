"""Windows, sessions and stream joins for Apache Spark, declared in TOML or Python, with state you can read.

The names below are imported on first use, so that `import slackwater` is fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from slackwater.core import VERSION
from slackwater.core.connector_registry import TABLE
from slackwater.core.notebook_repr import register_renderers

if TYPE_CHECKING:
    from slackwater.api import RegisteredPipeline as RegisteredPipeline
    from slackwater.api import pipeline as pipeline
    from slackwater.api import pipelines as pipelines
    from slackwater.api import run_streaming_pipeline as run_streaming_pipeline
    from slackwater.api import streaming_pipeline as streaming_pipeline
    from slackwater.config.aggregation import Aggregation as Aggregation
    from slackwater.config.connection import ConsoleConnection as ConsoleConnection
    from slackwater.config.connection import DeltaConnection as DeltaConnection
    from slackwater.config.connection import FilesConnection as FilesConnection
    from slackwater.config.connection import IcebergConnection as IcebergConnection
    from slackwater.config.connection import KafkaConnection as KafkaConnection
    from slackwater.config.connection import KinesisConnection as KinesisConnection
    from slackwater.config.connection import PostgresConnection as PostgresConnection
    from slackwater.config.connection import PubSubConnection as PubSubConnection
    from slackwater.config.connection import RabbitMQConnection as RabbitMQConnection
    from slackwater.config.custom_aggregator import Aggregator as Aggregator
    from slackwater.config.dedup import Dedup as Dedup
    from slackwater.config.join import Join as Join
    from slackwater.config.keyed_step import Keyed as Keyed
    from slackwater.config.keyed_step import KeyedFunction as KeyedFunction
    from slackwater.config.keyed_step import KeyedResult as KeyedResult
    from slackwater.config.pipeline import Pipeline as Pipeline
    from slackwater.config.source import Lookup as Lookup
    from slackwater.config.source import Source as Source
    from slackwater.config.stage import Stage as Stage
    from slackwater.config.stage import Transform as Transform
    from slackwater.config.target import StateStore as StateStore
    from slackwater.config.target import Target as Target
    from slackwater.config.toml import load as load
    from slackwater.config.toml import loads as loads
    from slackwater.config.toml import to_toml as to_toml
    from slackwater.config.window import Window as Window
    from slackwater.errors import ConfigError as ConfigError
    from slackwater.errors import SlackwaterError as SlackwaterError
    from slackwater.explain import Plan as Plan
    from slackwater.explain import describe as describe
    from slackwater.query.state_view import StateView as StateView
    from slackwater.query.state_view import open_state as open_state
    from slackwater.query.why_report import WhyReport as WhyReport
    from slackwater.query.why_report_builder import why as why
    from slackwater.runner.background_run import Handle as Handle
    from slackwater.runner.batch_run import batch as batch
    from slackwater.runner.batch_run import batch_join as batch_join
    from slackwater.runner.run import run as run

__version__ = VERSION

_HOMES = {
    "Aggregation": "config.aggregation",
    "Aggregator": "config.custom_aggregator",
    "ConfigError": "errors",
    "ConsoleConnection": "config.connection",
    "Dedup": "config.dedup",
    "DeltaConnection": "config.connection",
    "batch": "runner.batch_run",
    "batch_join": "runner.batch_run",
    "IcebergConnection": "config.connection",
    "KafkaConnection": "config.connection",
    "KinesisConnection": "config.connection",
    "PostgresConnection": "config.connection",
    "PubSubConnection": "config.connection",
    "RabbitMQConnection": "config.connection",
    "FilesConnection": "config.connection",
    "Handle": "runner.background_run",
    "Join": "config.join",
    "Keyed": "config.keyed_step",
    "KeyedFunction": "config.keyed_step",
    "KeyedResult": "config.keyed_step",
    "Lookup": "config.source",
    "Pipeline": "config.pipeline",
    "Plan": "explain",
    "RegisteredPipeline": "api",
    "SlackwaterError": "errors",
    "Source": "config.source",
    "StateStore": "config.target",
    "StateView": "query.state_view",
    "Target": "config.target",
    "Stage": "config.stage",
    "Transform": "config.stage",
    "WhyReport": "query.why_report",
    "Window": "config.window",
    "describe": "explain",
    "load": "config.toml",
    "loads": "config.toml",
    "open_state": "query.state_view",
    "pipeline": "api",
    "pipelines": "api",
    "run": "runner.run",
    "run_streaming_pipeline": "api",
    "streaming_pipeline": "api",
    "to_toml": "config.toml",
    "why": "query.why_report_builder",
}
__all__ = sorted([*_HOMES, "__version__"])


def _render_html(value: object) -> str:
    from slackwater.ui.notebook import to_html

    return to_html(value)


def _render_for_terminal(value: object) -> str:
    from slackwater.cli.api_value_format import format_api_value

    return format_api_value(value)


def _built_in_connectors() -> Mapping[str, str]:
    from slackwater.connectors import DESCRIPTIONS

    return DESCRIPTIONS


TABLE.register_built_in(_built_in_connectors)
register_renderers(html=_render_html, terminal=_render_for_terminal)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'slackwater' has no attribute {name!r}")
    return getattr(import_module(f"slackwater.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__]
