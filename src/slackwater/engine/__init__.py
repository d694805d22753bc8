"""Epochs and nothing else: what is read, folded, committed and published; knows no Spark. Its log lines hold no known secret."""

from __future__ import annotations

import logging

from slackwater.secrets import mask_secrets


class _Masked(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if (shown := mask_secrets(text)) != text:
            record.msg, record.args = shown, ()
        if record.exc_info and not record.exc_text:
            trace = logging.Formatter().formatException(record.exc_info)
            record.exc_text = mask_secrets(trace)
            if record.exc_text != trace:  # formatters of others, as Spark's JSON, write the error anew
                record.exc_info = None
        return True


for _name in (
    "slackwater",
    "py4j.clientserver",
    "py4j.java_gateway",
):  # these log what a batch raised, with Spark's words
    logging.getLogger(_name).addFilter(_Masked())
