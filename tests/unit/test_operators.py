"""Operators: frozen, picklable, registered in every room that asks for their kind; one that is not is an error, not a silent branch."""

from __future__ import annotations
