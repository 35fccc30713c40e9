"""The version of both packages; pyproject.toml reads it here, without running any code."""

__version__ = "0.1.0"
