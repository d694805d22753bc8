"""Names of the directories that Slackwater creates inside the directories of a config."""

STATE_FOLDERS = ("manifests", "segments", "outputs")  # within the state directory of a pipeline
OUTPUT_FOLDER = "_slackwater"  # within a target's directory; readers of its rows skip it

__all__ = ["OUTPUT_FOLDER", "STATE_FOLDERS"]
