"""Measure this package beside transformers on torch: lanes that take turns on the same batches."""
