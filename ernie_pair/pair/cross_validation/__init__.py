"""Cross-validation of a pair classifier: folds without shared texts, their runs, their joint results."""
