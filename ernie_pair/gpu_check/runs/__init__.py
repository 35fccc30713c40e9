"""Where and how the cases of the check run: commands with a limit, a machine, data, verdicts."""
