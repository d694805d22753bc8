"""The blocks of the page: one question each, answered by frozen values from one commit. Pure but for the state rows they read."""
