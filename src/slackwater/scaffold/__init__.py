"""Behind `slackwater init`: read a data sample, find times and keys in it, and write a config with comments."""
