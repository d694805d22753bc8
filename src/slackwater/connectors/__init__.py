"""Connectors: one folder per system, with its sources, its target, its reader and its description."""
