"""The processes of a run: messages, signals, the watchdog, the console; without Paddle."""
