"""Private names of Paddle 2.6.2 and fixes of its bugs, to be checked again for a newer Paddle."""
