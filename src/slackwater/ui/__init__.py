"""The page beside a pipeline, running or not, for people who wait for its output; takes no lock, changes nothing, needs no config.

    store.peek() ─▶ seen.look ─▶ blocks/* (frozen values) ─▶ JSON
      one commit                          │
                                          └─▶ draw/* (SVG) ─▶ templates ─▶ fragment, page, --save

Work is done once per commit, whoever watches: `live` keeps the latest answer, and its watcher looks for a later commit.
"""
