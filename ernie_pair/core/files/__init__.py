"""Files that are whole or absent: atomic writes, locks, hashes, JSON, arrays, results of a command."""
