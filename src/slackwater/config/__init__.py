"""The specs that users write: validated and immutable. This package opens no state, runs no Spark and reads no clock.

May import: core, errors, secrets.
"""
