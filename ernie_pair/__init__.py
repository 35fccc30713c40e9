"""ERNIE pretraining in static graph and sentence-pair classification in dynamic graph, on Paddle."""

from ernie_pair.cpu_math import prepare_cpu_math

prepare_cpu_math()  # here, because it has no effect once Paddle is loaded
