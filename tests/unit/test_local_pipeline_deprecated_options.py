"""`LocalPipeline` accepts deprecated option names and warns with the new names."""

from __future__ import annotations

import pytest

import slackwater as sw
from slackwater.testing import LocalPipeline

WINDOW = sw.Window(
    kind="tumbling", duration="1m", group_by=["user"], aggregations=[sw.Aggregation(agg="count", as_="clicks")]
)


def test_deprecated_option_name_works_and_warns_with_the_new_name() -> None:
    with pytest.warns(DeprecationWarning, match=r"^LocalPipeline: listen is now called capture_losses$"):
        test = LocalPipeline(WINDOW, {"user": "string"}, listen=False)
    with test:
        test.pipe([{"user": None, "ts": None}])
        assert not test.result().letters


def test_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="there is no option 'liste'"):
        LocalPipeline(WINDOW, {"user": "string"}, liste=False)
