"""The blocks of the page. Each answers one question with immutable values from one commit, and has no side effects."""
