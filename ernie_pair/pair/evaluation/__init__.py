"""The evaluation of a classifier: metrics, thresholds, calibration, slices, the report."""
