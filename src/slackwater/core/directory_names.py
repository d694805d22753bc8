"""The names of the directories that Slackwater makes inside those of a config."""

STATE_FOLDERS = ("manifests", "segments", "outputs")  # within a pipeline's directory of the state
OUTPUT_FOLDER = "_slackwater"  # within a target's directory; readers of the rows leave it out

__all__ = ["OUTPUT_FOLDER", "STATE_FOLDERS"]
