"""The work behind `slackwater init`: read a data sample, find times and keys in it, and write a commented config."""
