"""Train an encoder that embeds texts; start it again to resume: `ernie-pair train-embedding` as a file."""

from ernie_pair.__main__ import run_named

if __name__ == "__main__":
    run_named("train-embedding")
