"""Values, types, times and words that every room uses; knows no other room."""
