"""Open a separate Spark Connect session on a server that is already running.

SPARK_REMOTE=sc://host:15002      or `"spark.remote"` in [spark], which takes precedence
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from slackwater.connectors import spark_connect
from slackwater.connectors.source import spark_error_reason
from slackwater.core.humanize import mismatch
from slackwater.errors import StartError, Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KEY = "spark.remote"
_NEEDED = {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"}


def server_address(settings: Mapping[str, str]) -> str | None:
    """Return the address of the Spark Connect server; None if Spark runs in a local process.

    Raises StartError if the address is invalid, or if the settings name both a server and a Spark master.
    """
    address = settings.get(_KEY) or os.environ.get("SPARK_REMOTE")
    if not address:
        return None
    if "spark.master" in settings:
        source = f'"{_KEY}"' if _KEY in settings else "SPARK_REMOTE"
        raise StartError(
            f'[spark] sets "spark.master", but {source} names a Spark Connect server, which has its own master; remove '
            "one of them",
            Topic.SPARK_CONNECT,
        )
    if not address.startswith("sc://"):
        raise StartError(
            f'"{address}" is not the address of a Spark Connect server; expected sc://host:15002 in SPARK_REMOTE, or '
            f'in "{_KEY}" of [spark]',
            Topic.SPARK_CONNECT,
        )
    return address


def start_connect_session(url: str, settings: Mapping[str, str]) -> SparkSession:
    """Open a session on the server with these settings.

    Raises StartError if the server does not respond, or if a setting cannot be changed per session.
    """
    session: Any = _class()(connection=url)
    endpoint = spark_connect.server_endpoint(session)
    if not spark_connect.server_answers(session):
        raise StartError(
            f"Spark Connect at {endpoint}: no server answers; start the server, or correct SPARK_REMOTE",
            Topic.SPARK_CONNECT,
        )
    session.client.set_retry_policies(spark_connect.retry_policies())
    try:
        server = session.version
    except Exception as error:
        raise StartError(
            f"Spark Connect at {endpoint}: {spark_error_reason(error)}; expected a Spark Connect server, 4.0 or later",
            Topic.SPARK_CONNECT,
        ) from None
    if spark_connect.spark_version(session) < (4, 0):
        raise StartError(
            f"Spark Connect at {endpoint}: " + mismatch(f"Spark {server}", "Spark 4.0 or later"), Topic.SPARK_CONNECT
        )
    for key, value in settings.items():
        if key == _KEY:
            continue
        try:
            session.conf.set(key, value)
        except Exception:
            raise StartError(
                f'[spark] "{key}" cannot be set over Spark Connect, because it is a setting of the server; start the '
                f"server with --conf {key}=…, and remove the key from [spark]",
                Topic.SPARK_CONNECT,
            ) from None
    return session


def _class() -> Any:
    try:
        from pyspark.sql.connect.session import SparkSession as ConnectSession
    except ImportError as error:
        raise StartError(
            f"Spark Connect needs packages that are not installed ({spark_error_reason(error)}); pip install "
            "'slackwater[connect]'",
            Topic.NOT_INSTALLED,
        ) from None
    except Exception as error:  # protobuf: PySpark's messages were generated for an older version
        raise StartError(
            f"the Spark Connect client of this PySpark cannot be loaded ({spark_error_reason(error)}); install the "
            "version of protobuf that it needs",
            Topic.SPARK_CONNECT,
        ) from None
    return ConnectSession


def check_session_settings(session: SparkSession, where: str) -> None:
    """Raise StartError if a setting of the caller's session would change the meaning of a pipeline's SQL.

    Over Connect, a plan runs with the settings of the session that created it.
    """
    for key, expected in _NEEDED.items():
        setting = session.conf.get(key)
        if str(setting).casefold() != expected.casefold():
            raise StartError(
                f"{where}: over Spark Connect, a batch uses the settings of your session; "
                + mismatch(f'{key} = "{setting}"', f'"{expected}"; run spark.conf.set("{key}", "{expected}")'),
                Topic.SPARK_CONNECT,
            )
