"""State stores: their protocol, the record of a commit, and the stores in files and in Postgres.

This package knows nothing about configs, Spark or targets.
"""
