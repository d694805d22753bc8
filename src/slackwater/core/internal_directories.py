"""Names of directories that Slackwater creates within the directories of a config."""

STATE_FOLDERS = ("manifests", "segments", "outputs")  # within the state directory of a pipeline
OUTPUT_FOLDER = "_slackwater"  # within a target's directory; readers of the target skip it

__all__ = ["OUTPUT_FOLDER", "STATE_FOLDERS"]
