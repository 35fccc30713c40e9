"""Convert static ERNIE weights into a dynamic model folder, with the proof that both agree.

python scripts/ernie_static_to_dynamic.py --static_model_path output/model_last/static_vars \
    --output_dir ernie_checkpoint
"""

from data_tools.options.cli import run_command
from ernie_pair.pretrain.convert.convert import ConvertConfig, convert


def main() -> None:
    run_command(convert, ConvertConfig)


if __name__ == "__main__":
    main()
