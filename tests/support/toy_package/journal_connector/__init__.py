"""A connector outside Slackwater for journals, which are append-only files."""
