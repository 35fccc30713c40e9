"""Names of flags: which one is meant by another word, which are files or folders, and which are left out."""
