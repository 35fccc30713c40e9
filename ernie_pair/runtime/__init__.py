"""The machine of a run: its device, its cores, its processes, and the installed Paddle."""
