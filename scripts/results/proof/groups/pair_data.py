"""Shared by the runs on pairs: the parts of the data sets, the flags of training and of prediction."""

from typing import Dict, List, Tuple

from proof.experiment import Words, words_of
from proof.scale import Scale

FILES = {"lcqmc": ("train.tsv", "dev.tsv"), "afqmc": ("train.json", "dev.json")}
# What chooses the best checkpoint. Of the pairs of AFQMC 69 % have one class: by its accuracy a model that
# always predicts that class, such as an untrained one, is chosen.
CHOSEN_BY = {"lcqmc": "accuracy", "afqmc": "auc"}
WEIGHTS = "$WORK/weights"
PRETRAINED = f"{WEIGHTS}/pretrained"


def continued_on(data_set: str) -> str:
    """Return the weights that continued with the texts of a data set, without its labels."""
    return f"{WEIGHTS}/continued_{data_set}"


BEST_START = continued_on("lcqmc")  # of the trainings on LCQMC that compare something else


def cut_of(data_set: str, scale: Scale) -> str:
    """Return the folder of a data set that is cut, at these sizes, into parts without a common pair."""
    sizes = "-".join([*_sizes(data_set, scale), f"choose{scale.choose}", f"rest{scale.rest}"])
    return f"$WORK/pairs/{data_set}-{sizes}"


def _sizes(data_set: str, scale: Scale) -> List[str]:
    return [str(scale.small_rows), str(scale.large_rows)] if data_set == "lcqmc" else []


def test_of(data_set: str) -> str:
    """Return the test file: what the data set calls dev, because its test has no labels."""
    return f"$DATA/pairs/{data_set}/{FILES[data_set][1]}"


def cut_command(data_set: str, scale: Scale) -> Words:
    """Return the command that cuts a data set; done once, it has nothing to do."""
    train, test = (f"$DATA/pairs/{data_set}/{name}" for name in FILES[data_set])
    return (
        *("scripts/results/cut_pairs.py", f"--train_file={train}", f"--test_file={test}"),
        *(f"--output_dir={cut_of(data_set, scale)}", f"--rows={' '.join(_sizes(data_set, scale))}"),
        *(f"--choose={scale.choose}", f"--rest={scale.rest}"),
    )


def training_flags(data_set: str, rows: str, scale: Scale) -> Dict[str, object]:
    """Return the flags of a training on the part ``rows`` of a data set: 5000, 20000 or all."""
    metric = CHOSEN_BY[data_set]
    return {
        "train_file": f"{cut_of(data_set, scale)}/train_{rows}.jsonl",
        "dev_file": f"{cut_of(data_set, scale)}/choose.jsonl",
        **({} if metric == "accuracy" else {"best_metric": metric}),
        "max_seq_len": scale.length,
        "batch_size": 64,
        "learning_rate": scale.learning_rate,
        "epochs": scale.epochs,
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
