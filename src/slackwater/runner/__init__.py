"""Runs of pipelines: build the components of a config, then start, watch and stop them.

Independent of the command line.
"""
