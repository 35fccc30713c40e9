"""Checks of an installation: doctor, self-check, quickstart, samples as a model reads them."""
