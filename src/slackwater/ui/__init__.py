"""The web page of a pipeline, whether or not the pipeline is running.

The page takes no lock, changes nothing and needs no config.

    store.peek() ─▶ page_model.load_model ─▶ blocks/* (immutable values) ─┬─▶ JSON
      one commit                                                          └─▶ SVG ─▶ templates ─▶ HTML

Each commit is processed once, no matter how many viewers there are: `page_cache` keeps the latest model and watches for
commits.

May import: config, connectors, core, dead_letters, engine, errors, evolution, explain, joins, logging, maintenance,
operators, query, runner, secrets, state, watermark, web, windows.
"""
