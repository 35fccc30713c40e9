"""Pair files that this package makes: each row says its origin, and none stands in the files that measure."""
