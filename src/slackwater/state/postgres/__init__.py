"""State as tables that anyone can SELECT from; knows no files but staged ones. The same names as in `state/files`."""
