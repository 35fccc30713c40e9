"""The version of both packages; pyproject.toml reads it here, without running any code."""

__version__ = "0.2.0.dev0"
