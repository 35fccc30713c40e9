"""Write the digits of the default paths to a file, or compare them with those of another checkout.

    python scripts/default_digits.py digits.json
    python scripts/default_digits.py digits.json --root ../before    # made by the code there
    python scripts/default_digits.py digits.json --compare before.json

Ids of a corpus, losses of 40 steps of each kind of training, bytes of a resumed run, metrics, vectors and
answers of exports, all on the built-in sample and one thread. Two checkouts on one machine give the same
to the bit; another processor gives others. Exit code 1: they differ.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STEPS = 40
LOGGING = f"--max_steps {STEPS} --logging_freq 1 --eval_freq 20"
TRAINING = f"{LOGGING} --batch_size 16 --learning_rate 5e-4 --max_seq_len 48"
PRETRAINING = (
    f"--model_name_or_path small --input_dir corpus --from_scratch true {LOGGING} --micro_batch_size 8 "
    "--max_seq_len 64 --max_lr 1e-3 --split 900,50,50 --eval_iters 2 --num_workers 0"
)
START = "--model_name_or_path converted --model_type ernie"
PAIRS = "--train_file train.tsv --dev_file dev.tsv"
MODEL = (
    "--hidden_size 64 --num_hidden_layers 2 --num_attention_heads 2 --intermediate_size 128 "
    "--max_position_embeddings 128"
)
GRADED = "--train_file graded.tsv --dev_file graded.tsv --target regression"
RANKED = "--train_file ranked.tsv --dev_file ranked.tsv --target ranking --query query"
BEST = "--model_path classifier/best --input_file test.tsv"
EXPORTED = "--model_path exported --input_file test.tsv"

MAKE_DATA = f"""
build vocab --input_path sample/corpus.txt --output_file vocab.txt
prepare --input_path sample/corpus.txt --output_prefix corpus/text --vocab_file vocab.txt --chinese true
build ngrams --input_path corpus/text --vocab_file vocab.txt --output_file ngrams.txt
new-model --vocab_file vocab.txt --output_dir small {MODEL}
"""
# {folder of a run: its command}
RUNS = {
    "pretrain": f"pretrain {PRETRAINING}",
    "pretrain_accumulated": f"pretrain {PRETRAINING} --global_batch_size 16 --use_recompute true",
    "pretrain_lamb": f"pretrain {PRETRAINING} --optimizer lamb --binary_head false",
    "pretrain_ngrams": f"pretrain {PRETRAINING} --ngram_lexicon ngrams.txt",
    "pretrain_decoder": f"pretrain {PRETRAINING} --decoder_masked_prob 0.5",
    "pretrain_dynamic": f"pretrain {PRETRAINING} --graph dynamic",
    "pretrain_amp": f"pretrain {PRETRAINING} --use_amp true --amp_dtype float32",
    "pretrain_phases": f"pretrain {PRETRAINING} --phases 32:20,64:20 --max_seq_len 64",
    "classifier": f"train {START} {PAIRS} {TRAINING}",
    "plain": f"train {START} {PAIRS} {TRAINING} --kernels plain --to_static false",
    "regularized": f"train {START} {PAIRS} {TRAINING} --rdrop_alpha 1 --fgm_epsilon 0.5",
    "accumulated": f"train {START} {PAIRS} {TRAINING} --gradient_accumulation_steps 2 --use_recompute true",
    "symmetric": f"train {START} {PAIRS} {TRAINING} --symmetric consistency --layer_decay 0.9",
    "regression": f"train {START} {GRADED} {TRAINING}",
    "ranking": f"train {START} {RANKED} {TRAINING}",
    "student": f"distill --teacher classifier/best {PAIRS} {TRAINING} --layers 1",
    "encoder": f"train-embedding {START} {PAIRS} {TRAINING}",
    "encoder_cosent": f"train-embedding {START} {PAIRS} {TRAINING} --objective cosent",
}
KILLED = {"pretrain": "pretrain_resumed", "classifier": "classifier_resumed"}  # stopped after a checkpoint
# {what it makes: its command}, and the flag that names it
RESULTS = {
    "mlm.json": "evaluate mlm --model_path converted --input_dir corpus --part all --output_file",
    "evaluation.json": f"evaluate {BEST} --output_file",
    "encoder.json": "evaluate embedding --model_path encoder/best --input_file test.tsv --output_file",
    "predictions.tsv": f"predict {BEST} --scores true --output_file",
    "exported": "export --model_path classifier/best --format both --output_dir",
    "exported.tsv": f"predict {EXPORTED} --backend paddle --scores true --output_file",
    "onnx.tsv": f"predict {EXPORTED} --backend onnx --scores true --output_file",
    "vectors": "embed --model_path encoder/best --input_file texts.txt --output_dir",
}
LEFT_OUT = (
    "time",
    "second",
    "memory",
    "tokens_per",
    "flops",
    "date",
    "path",
    "folder",
    "file",
    "version",
    "model_path",
)


class Line:
    """The commands of the checkout ``root``, in ``folder``."""

    def __init__(self, root: Path, folder: Path):
        self.folder = folder
        self._environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}

    def start(self, words: str) -> subprocess.Popen[str]:
        """Return the process of a command."""
        program = [sys.executable, "-c", "from ernie_pair.__main__ import main; main()", *words.split()]
        return subprocess.Popen(
            program,
            cwd=self.folder,
            env=self._environment,
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def run(self, words: str) -> None:
        """Run a command. Raises SystemExit with its words if it fails."""
        print(words, file=sys.stderr)
        process = self.start(words)
        _, told = process.communicate()
        if process.returncode:
            sys.exit(f"ernie-pair {words}\nexit code {process.returncode}\n{told[-2000:]}")

    def run_in_two(self, words: str, output: str) -> None:
        """Run a training, stop it once it has a checkpoint, and run it again."""
        words += f" --checkpoint_steps 15 --output_dir {output}"
        process = self.start(words)
        while process.poll() is None and not (self.folder / output / "model_last").exists():
            time.sleep(0.05)
        process.terminate()
        process.communicate()
        self.run(words)


def write_files(folder: Path) -> None:
    """Write graded pairs, rankings and texts beside the pairs of the sample."""
    for name in ("train", "dev", "test"):
        shutil.copy(folder / "sample" / "pairs" / f"{name}.tsv", folder)
    rows = [line.split("\t") for line in (folder / "train.tsv").read_text("utf-8").splitlines()]
    rows = [row for row in rows if row[-1] in ("0", "1")]
    matches = [(a, b) for a, b, label in rows if label == "1"]
    ranked = [
        [f"q{number}", a, matches[(number + shift) % len(matches)][1], str(int(shift == 0))]
        for number, (a, _) in enumerate(matches[:120])
        for shift in range(4)
    ]
    files = {
        "graded.tsv": [
            ["text_a", "text_b", "label"],
            *([a, b, str(4.5 * int(label))] for a, b, label in rows),
        ],
        "ranked.tsv": [["query", "text_a", "text_b", "label"], *ranked],
        "texts.txt": [[a] for a, _, _ in rows[:200]],
    }
    for name, lines in files.items():
        (folder / name).write_text("".join("\t".join(line) + "\n" for line in lines), "utf-8")


def hash_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def numbers_in(value: object) -> object:
    """Return the numbers and words of JSON without those of a time, a place or a machine."""
    if isinstance(value, dict):
        return {
            name: numbers_in(each)
            for name, each in value.items()
            if not any(word in name for word in LEFT_OUT)
        }
    return [numbers_in(each) for each in value] if isinstance(value, list) else value


def read_run(folder: Path) -> dict[str, object]:
    """Return what a run logged at each step, and the hashes of its weights."""
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    kept = [numbers_in(event) for event in events if event.get("split") in ("train", "valid", "test")]
    weights = {
        path.name: hash_of(path) for path in sorted((folder / "model_last").resolve().rglob("*.safetensors"))
    }
    return {"losses": kept, "weights": weights}


def read_result(path: Path) -> object:
    """Return the digits of a file or a folder that a command made."""
    if path.suffix == ".json":
        return numbers_in(json.loads(path.read_text("utf-8")))
    files = sorted(path.glob("*.npy")) if path.is_dir() else [path]
    return {each.name: hash_of(each) for each in files}


def make_digits(line: Line) -> dict[str, object]:
    """Run all commands and return {what: its digits}."""
    folder = line.folder
    line.run("make-sample --output_dir sample --documents 200 --pairs 900")
    write_files(folder)
    for words in MAKE_DATA.strip().splitlines():
        line.run(words)
    digits: dict[str, object] = {
        name: hash_of(folder / name)
        for name in ("sample/corpus.txt", "train.tsv", "vocab.txt", "corpus/text_ids.npy", "ngrams.txt")
    }
    for name, words in RUNS.items():
        if name == "classifier":
            line.run("convert --static_model_path pretrain/model_last/static_vars --output_dir converted")
            digits["converted"] = {
                path.name: hash_of(path) for path in sorted((folder / "converted").iterdir())
            }
        line.run(f"{words} --output_dir {name}")
        digits[name] = read_run(folder / name)
    for name, output in KILLED.items():
        line.run_in_two(RUNS[name], output)
        digits[output] = read_run(folder / output)["weights"]
    for name, words in RESULTS.items():
        line.run(f"{words} {name}")
        digits[name] = read_result(folder / name)
    return digits


def differences(before: object, after: object, where: str = "") -> Iterator[str]:
    """Yield the places where two files of digits differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted({*before, *after}):
            yield from differences(before.get(name), after.get(name), f"{where}/{name}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, (one, other) in enumerate(zip(before, after)):
            yield from differences(one, other, f"{where}/{place}")
    elif before != after:
        yield f"{where}: {str(before)[:80]} -> {str(after)[:80]}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output_file", type=Path, help="the JSON file to write")
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="the checkout whose code runs (default: this one)"
    )
    parser.add_argument("--compare", type=Path, help="an earlier output_file, to compare with")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        digits = make_digits(Line(arguments.root.resolve(), Path(folder)))
    arguments.output_file.write_text(json.dumps(digits, indent=1, sort_keys=True) + "\n", "utf-8")
    if arguments.compare:
        found = list(differences(json.loads(arguments.compare.read_text("utf-8")), digits))
        print("\n".join(found[:50] or ["equal to the bit"]))
        sys.exit(bool(found))


if __name__ == "__main__":
    main()
