"""Convert static ERNIE weights into a dynamic model folder: `ernie-pair convert` as a file."""

from ernie_pair.__main__ import run_named

if __name__ == "__main__":
    run_named("convert")
