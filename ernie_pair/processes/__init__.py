"""The processes of one run: rank and size, collectives, stop signals, the watchdog; no framework."""
