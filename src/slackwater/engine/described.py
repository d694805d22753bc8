"""The logic of a state as the state itself tells it: of windows from their description, of joins from their fingerprint."""

from __future__ import annotations

from slackwater.core.schema import Field
from slackwater.engine import look, recover
from slackwater.engine.steps import Step
from slackwater.errors import StateError
from slackwater.joins.logic import JoinLogic, Side, side
from slackwater.state.protocol import Manifest

SIDES = ("left", "right")


def step_in(manifest: Manifest) -> Step:
    """The window or join of one stage. Raises StateError where the state does not tell it.

    Of a join only what its buffers depend on: it can be read and rewritten by it, not run.
    """
    if manifest.fingerprint.get("kind") != "join":
        return look.logic_in(manifest)
    try:
        left, right = (_side(manifest, which) for which in (0, 1))
    except (KeyError, TypeError, ValueError, IndexError):
        raise StateError(
            f"{manifest.pipeline}: the state in epoch {manifest.epoch} does not tell which join it is of"
        ) from None
    allowed = recover.emission_of(manifest)["retain_us"]
    return JoinLogic(manifest.pipeline, left, right, allowed, "later", None, False)


def _side(manifest: Manifest, which: int) -> Side:
    written = manifest.fingerprint
    keys, columns = ([_field(text) for text in written[part][which]] for part in ("keys", "columns"))
    low, high = written["bounds_us"]
    allowed = int(recover.emission_of(manifest)["retain_us"])
    outer = SIDES[which] in written["outer"]
    return side(which, SIDES[which], keys, columns, (), int(low), int(high), allowed, outer)


def _field(text: object) -> Field:
    if not isinstance(text, str):
        raise TypeError("no column")
    name, _, type_ = text.rpartition(" ")
    return Field(name, type_)


def as_emitted(logic: Step, manifest: Manifest) -> bool:
    """Whether the rows of a stage are as its description has them: not in the commit that rewrote them for another."""
    return bool(recover.emission_of(manifest) == recover.emission(logic))
