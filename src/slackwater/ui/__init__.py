"""A page beside a pipeline, running or not: what its commits say, for people who wait for its output.

    store.peek() ─▶ seen.look ─▶ blocks/* (frozen values) ─▶ JSON
      one commit                          │
                                          └─▶ draw/* (SVG) ─▶ templates ─▶ fragment, page, --save

Work is done once per commit, whoever watches: `live` keeps the latest answer, and its watcher looks for a later commit.
Nothing here takes a lock of the state or changes anything.
"""
