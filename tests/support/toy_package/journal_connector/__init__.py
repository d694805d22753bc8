"""A connector outside Slackwater: journals, which are files that only grow."""
