"""The web page of a pipeline, which may be running or not. It takes no lock, changes nothing and needs no config.

<<<<<<< HEAD
    store.peek() ─▶ page_model.load_model ─▶ blocks/* ─▶ frozen values ─▶ JSON
      one commit                                └─▶ SVG ─▶ templates ─▶ fragment, page, --save
=======
    store.peek() ─▶ page_model.load_model ─▶ blocks/* (frozen values) ─▶ JSON
      one commit                                │
                                                └─▶ SVG ─▶ templates ─▶ fragment, page, --save
>>>>>>> 0d4127f5 (Correct the sentences of six packages)

Each commit is processed once, no matter how many viewers there are: `page_cache` keeps the latest model and watches for
commits.

May import: config, connectors, core, dead_letters, engine, errors, evolution, explain, joins, logging, maintenance,
operators, query, runner, secrets, state, watermark, web, windows.
"""
