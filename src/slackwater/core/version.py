"""The version of Slackwater."""

VERSION = "0.1.0"
