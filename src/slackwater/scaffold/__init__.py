"""The work of `slackwater init`: read a sample of the data, find times and keys in it, and write a commented config."""
