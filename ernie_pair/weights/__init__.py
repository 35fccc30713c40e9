"""Files of weights: formats, names of parameters, checks."""
