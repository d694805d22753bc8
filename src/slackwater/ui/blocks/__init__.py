"""The blocks of the page. Each answers one question with frozen values from one commit, and has no side effects."""
