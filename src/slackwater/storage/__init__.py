"""Storage of files: local directories and object stores, with their clients, caches and locks.

This package knows nothing about states, configs or targets.

May import: core, errors, logging, secrets.
"""
