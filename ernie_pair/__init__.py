"""ERNIE pretraining in static graph and sentence-pair classification in dynamic graph, on Paddle."""

import warnings

from ernie_pair.cpu_math import prepare_cpu_math

# Paddle imports distutils before setuptools; setuptools remarks on it at every start.
warnings.filterwarnings("ignore", message="Setuptools is replacing distutils")

prepare_cpu_math()  # here, because it has no effect once Paddle is loaded
