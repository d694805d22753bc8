"""The web page of a pipeline. It only reads the state, so it needs neither a lock nor a running pipeline nor a config.

    store.peek() ─▶ page_model.load_model ─▶ blocks/* (immutable values) ─┬─▶ JSON
      one commit                                                          └─▶ SVG ─▶ templates ─▶ HTML

Each commit is processed once for all viewers: `page_cache` watches for commits and keeps the latest model.

May import: config, connectors, core, dead_letters, engine, errors, evolution, explain, joins, logging, maintenance,
operators, query, runner, secret_masking, state, watermark, web, windows.
"""
