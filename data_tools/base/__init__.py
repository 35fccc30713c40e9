"""The foundations of all rooms: errors, flags, progress, process pools."""
