"""What every room stands on: errors, flags, progress, process pools."""
