"""--dry_run: what a training would do, how long and with how much memory; nothing is written."""
