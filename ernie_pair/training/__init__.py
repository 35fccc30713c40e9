"""One run of training, the same for every kind: loop, schedule, log, reporters, dry run."""
