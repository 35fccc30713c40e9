"""What the runs on pairs share: the cuts of the data sets, the flags of training, how a model is asked."""

from typing import Dict, List, Tuple

from proof.experiment import Words, words_of
from proof.scale import Scale

FILES = {"lcqmc": ("train.tsv", "dev.tsv"), "afqmc": ("train.json", "dev.json")}
WEIGHTS = "$WORK/weights"
BEST_START = f"{WEIGHTS}/pretrained"


def cut_of(data_set: str, scale: Scale) -> str:
    """Return the folder of a data set that is cut, at these sizes, into parts without a common pair."""
    sizes = "-".join([*_sizes(data_set, scale), f"choose{scale.choose}", f"rest{scale.rest}"])
    return f"$WORK/pairs/{data_set}-{sizes}"


def _sizes(data_set: str, scale: Scale) -> List[str]:
    return [str(scale.small_rows), str(scale.large_rows)] if data_set == "lcqmc" else []


def test_of(data_set: str) -> str:
    """Return the file that measures: what the data set calls dev, as its test has no labels."""
    return f"$DATA/pairs/{data_set}/{FILES[data_set][1]}"


def cut_command(data_set: str, scale: Scale) -> Words:
    """Return the command that cuts a data set; where that is done it has nothing to do."""
    train, test = (f"$DATA/pairs/{data_set}/{name}" for name in FILES[data_set])
    return (
        *("scripts/results/cut_pairs.py", f"--train_file={train}", f"--test_file={test}"),
        *(f"--output_dir={cut_of(data_set, scale)}", f"--rows={' '.join(_sizes(data_set, scale))}"),
        *(f"--choose={scale.choose}", f"--rest={scale.rest}"),
    )


def training_flags(data_set: str, rows: str, scale: Scale) -> Dict[str, object]:
    """Return the flags of a training on the part ``rows`` of a data set: 5000, 20000 or all."""
    return {
        "train_file": f"{cut_of(data_set, scale)}/train_{rows}.jsonl",
        "dev_file": f"{cut_of(data_set, scale)}/choose.jsonl",
        "max_seq_len": scale.length,
        "batch_size": 64,
        "learning_rate": scale.pair_rate,
        "epochs": scale.pair_epochs,
        "eval_freq": 1000000,
        "logging_freq": 20,
        "checkpoint_steps": 1000,
        "keep_checkpoints": 2,
    }


def train_and_ask(
    run: str, seed: int, flags: Dict[str, object], start: str = BEST_START, command: str = "train"
) -> Tuple[Words, Words]:
    """Return the commands of one training of ``run``, GROUP/NAME, and of its answers to the test pairs."""
    folder = trained(run, seed)
    train = words_of(command, model_name_or_path=start, output_dir=folder, seed=seed, **flags)
    return train, ask(folder, predictions(run, seed))


def trained(run: str, seed: int) -> str:
    """Return the output_dir of a training of ``run``, GROUP/NAME."""
    return f"$WORK/{run}/seed-{seed}"


def predictions(run: str, seed: int) -> str:
    """Return the file of the probabilities that the model of a seed gives the test pairs."""
    return f"$WORK/{run}/predictions-{seed}.tsv"


def ask(model: str, output: str, data_set: str = "lcqmc", **flags) -> Words:
    """Return the command that writes the probabilities of the test pairs."""
    return words_of(
        "predict", model_path=model, input_file=test_of(data_set), output_file=output, scores=True, **flags
    )
