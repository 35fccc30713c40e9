"""The search for flags of training that make a better classifier: trials, each a run, chosen by Optuna."""
