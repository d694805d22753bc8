"""Runs of pipelines: build the components of a config, then start, watch and stop them.

This package does not depend on the command line.
"""
