"""Several trainings one after another: the plan that they share, what is left of them, one of them here."""
