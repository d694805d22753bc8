"""State stores: their protocol, the record of a commit, and the stores in files and in Postgres.

Nothing here knows configs, Spark or targets.
"""
