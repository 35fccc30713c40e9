"""How options are declared, read from flags and YAML, shown in --help and suggested."""
