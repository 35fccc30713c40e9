"""Measure a trained pair model on labelled pairs: `ernie-pair evaluate` as a file."""

from ernie_pair.__main__ import run_named

if __name__ == "__main__":
    run_named("evaluate")
