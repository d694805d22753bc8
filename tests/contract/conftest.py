"""The stores are held against the laws in the same way."""

from __future__ import annotations

from tests.support.foreseen import foreseen as foreseen
