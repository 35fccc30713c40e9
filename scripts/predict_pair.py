"""Predict the class of every pair of a file: `ernie-pair predict` as a file."""

from ernie_pair.__main__ import run_named

if __name__ == "__main__":
    run_named("predict")
