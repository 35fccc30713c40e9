"""Fine-tune an encoder on sentence pairs; start it again to resume: `ernie-pair train` as a file."""

from ernie_pair.__main__ import run_named

if __name__ == "__main__":
    run_named("train")
