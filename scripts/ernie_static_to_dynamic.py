"""Convert static ERNIE weights into a dynamic model folder, with the proof that both agree.

python scripts/ernie_static_to_dynamic.py --static_model_path output/model_last/static_vars \
    --output_dir ernie_checkpoint
"""

from ernie_pair.__main__ import run_named

if __name__ == "__main__":
    run_named("convert")
