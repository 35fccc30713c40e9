"""Names of flags: which one is meant by another word, and which names are files or folders."""
