"""Validated, immutable specs, as users write them. This package never opens a state, runs Spark or reads the clock.

May import: core, errors, secret_masking.
"""
