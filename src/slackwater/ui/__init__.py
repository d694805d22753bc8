"""The page of a pipeline, whether it runs or not. It takes no lock, changes nothing and needs no config.

    store.peek() ─▶ page_model.load_model ─▶ blocks/* (frozen values) ─▶ JSON
      one commit                                │
                                                └─▶ draw/* (SVG) ─▶ templates ─▶ fragment, page, --save

Each commit is processed once, however many viewers there are: `page_cache` keeps the latest model and watches for commits.
"""
