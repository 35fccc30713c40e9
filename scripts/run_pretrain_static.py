"""Pretrain ERNIE 1.0 in static graph; start it again to resume: `ernie-pair pretrain` as a file."""

from ernie_pair.__main__ import run_named

if __name__ == "__main__":
    run_named("pretrain")
