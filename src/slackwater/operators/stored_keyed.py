"""A keyed operator as its state describes it, for readers and for the migration of a state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NoReturn, Self

from slackwater.core.schema import Field, parse_field
from slackwater.operators.keyed import KeyedOperator

if TYPE_CHECKING:
    import polars as pl

    from slackwater.state.commit import StageState


@dataclass(frozen=True)
class StoredKeyedOperator(KeyedOperator):
    """A keyed operator as its state describes it. It can read and rewrite rows of state, but cannot process input.

    Restoring it needs no code of the operator, so a state never decides which code is loaded.
    """

    stored_kind: str = ""
    stored_fields: tuple[Field, ...] = ()

    KIND: ClassVar[str] = "keyed"

    @property
    def kind(self) -> str:
        return self.stored_kind

    @property
    def state_fields(self) -> Sequence[Field]:
        return self.stored_fields

    @classmethod
    def from_state(cls, pipeline: str, state: StageState) -> Self:
        """Restore the operator of a stage.

        Raises KeyError, TypeError or ValueError if the state does not describe the operator.
        """
        wrote = state.fingerprint
        keys, stored = (tuple(parse_field(text) for text in wrote[part]) for part in ("keys", "state"))
        fields = tuple(Field(n, t) for n, t in state.described.get("columns", {}).items())
        return cls(pipeline, keys, fields, str(wrote["kind"]), stored)

    def advance(self, rows: pl.DataFrame, state: pl.DataFrame, watermark: int) -> NoReturn:
        raise NotImplementedError("an operator that was restored from a state does not run")
