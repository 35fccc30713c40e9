"""The parts of a step in the dynamic graph: precision, parallelism, optimizer, recompute."""
