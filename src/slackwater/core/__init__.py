"""Values, types, times and wording that every room uses. This room imports no other room."""
