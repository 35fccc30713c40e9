"""What a classifier is worth: metrics, thresholds, calibration, slices, the report."""
