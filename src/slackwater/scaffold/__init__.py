"""What `slackwater init` knows: reading a sample of the data, finding times and keys in it, writing a commented config."""
