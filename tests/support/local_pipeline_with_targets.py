"""An in-process pipeline for tests, with the targets of its config."""

from __future__ import annotations

from slackwater.runner.component_factory import create_target_writers
from slackwater.testing.local_pipeline import LocalPipeline


class LocalPipelineWithTargets(LocalPipeline):
    """A local pipeline that opens the targets of its config at each start."""

    def _set_targets(self, target_name: str) -> None:
        self._target_name = target_name

    def _start(self) -> None:
        self._targets = create_target_writers(self.pipeline, self._steps, self._state_id)  # type: ignore[assignment]
        for target in self._targets.values():
            target.open()
        super()._start()

    def _stop(self) -> None:
        super()._stop()
        for target in getattr(self, "_targets", {}).values():
            target.close()
