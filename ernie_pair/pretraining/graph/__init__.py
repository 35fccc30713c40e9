"""The static program of ERNIE 1.0: model, optimizer, precision, sharding."""
