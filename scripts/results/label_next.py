"""Measure whether the pairs that `select` chooses are worth more labels than pairs drawn at random.

python scripts/results/label_next.py --train_file TSV --test_file TSV --start FOLDER --output_file FILE

For each seed a classifier learns 500 pairs; of 10,000 others 500 are chosen by it, and 500 drawn; from the
same start it learns the first 500 with either. No pair has a text of the test. A line for each seed and way
is added to FILE, and the same command goes on where it was; the table comes at the end.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from few_labels import COLUMNS, read
from sklearn.metrics import roc_auc_score

import ernie_pair

FIRST, MORE, POOL, DEV = 500, 500, 10_000, 200


def trained(rows: pd.DataFrame, start: str, folder: Path, name: str, seed: int) -> str:
    """Train on ``rows`` as `pipeline` does; return the folder of the run."""
    files = {"train_file": f"{folder}/{name}.tsv", "dev_file": f"{folder}/dev.tsv"}
    write(rows, files["train_file"])
    ernie_pair.train(
        model_name_or_path=start, output_dir=f"{folder}/{name}", batch_size=32, epochs=13, max_seq_len=64,
        seed=seed, learning_rate=3e-4, evaluation_strategy="epoch", logging_freq=1000, device="cpu", **files,
    )  # fmt: skip
    return f"{folder}/{name}"


def write(rows: pd.DataFrame, path: str) -> None:
    """Write texts and labels without a header."""
    rows.to_csv(path, sep="\t", quoting=3, header=False, index=False)


def measure(args: argparse.Namespace, seed: int) -> list:
    """Return {way, seed, accuracy, auc} of the first pairs alone, with random ones and with chosen ones."""
    train, test = read(args.train_file), read(args.test_file)
    known = {*test["text_a"], *test["text_b"]}
    train = train[~train["text_a"].isin(known) & ~train["text_b"].isin(known)].drop_duplicates(COLUMNS[:2])
    train = train.iloc[np.random.default_rng(seed).permutation(len(train))]
    first, dev = train[:FIRST], train[FIRST : FIRST + DEV]
    pool, test = train[FIRST + DEV :][:POOL], test.sample(min(args.test_rows, len(test)), random_state=0)
    with tempfile.TemporaryDirectory(prefix="next-") as place:
        folder = Path(place)
        write(dev, f"{folder}/dev.tsv")
        write(pool[COLUMNS[:2]], f"{folder}/pool.tsv")
        models = {"first": trained(first, args.start, folder, "first", seed)}
        ernie_pair.select(
            model_path=models["first"], input_file=f"{folder}/pool.tsv", rows=MORE, seed=seed,
            output_file=f"{folder}/asked.jsonl", labelled_files=f"{folder}/first.tsv", device="cpu",
        )  # fmt: skip
        asked = pd.read_json(f"{folder}/asked.jsonl", lines=True, dtype=str)[COLUMNS[:2]]
        for way, rows in {"random": pool[:MORE], "selected": asked.merge(pool, on=COLUMNS[:2])}.items():
            assert len(rows) == MORE
            models[way] = trained(pd.concat([first, rows[COLUMNS]]), args.start, folder, way, seed)
        found = []
        for way, model in models.items():
            answers = ernie_pair.load(model).predict(test[COLUMNS[:2]].values.tolist())
            scores = np.array(answers.probabilities)[:, 1]
            accuracy = float(((scores > 0.5) == test["label"]).mean())
            auc = float(roc_auc_score(test["label"], scores))
            found.append({"way": way, "seed": seed, "accuracy": accuracy, "auc": auc})
    return found


def main() -> None:
    """Measure, and print the table, with the paired difference of selected and random."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("train_file", "test_file", "start", "output_file"):
        parser.add_argument(f"--{name}", required=True)
    for name, default in {"seeds": 5, "test_rows": 3000}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    output = Path(args.output_file)
    done = [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []
    for seed in {*range(args.seeds)} - {one["seed"] for one in done}:
        found = measure(args, seed)
        done += found
        with output.open("a") as file:
            file.writelines(json.dumps(one) + "\n" for one in found)
    table = pd.DataFrame(done).pivot(index="seed", columns="way", values=["auc", "accuracy"])
    for metric in ("auc", "accuracy"):
        table[metric, "gain"] = table[metric, "selected"] - table[metric, "random"]
    print(table.agg(["mean", "std"]).T.round(4).to_string())


if __name__ == "__main__":
    main()
