"""Run epochs: read, ingest, commit and publish. This package does not depend on Spark, windows or joins.

Importing this package masks registered secrets in log lines.

May import: config, connectors, core, errors, evolution, logging, operators, secret_masking, state, watermark.
"""

from __future__ import annotations

import logging

from slackwater.secret_masking import mask_secrets


class _SecretFilter(logging.Filter):
    """Masks registered secrets in messages and stack traces."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if (shown := mask_secrets(text)) != text:
            record.msg, record.args = shown, ()
        if record.exc_info and not record.exc_text:
            trace = logging.Formatter().formatException(record.exc_info)
            record.exc_text = mask_secrets(trace)
            if record.exc_text != trace:  # other formatters, such as Spark's JSON, would format the error again
                record.exc_info = None
        return True


for _name in (
    "slackwater",
    "py4j.clientserver",
    "py4j.java_gateway",
):  # they log errors of a batch with Spark's message
    logging.getLogger(_name).addFilter(_SecretFilter())
