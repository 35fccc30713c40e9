"""Private names of Paddle 2.6.2 and repairs of its faults: what a newer Paddle has to be compared with."""
