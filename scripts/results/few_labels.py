"""Measure what few labelled pairs give: a classifier, and vectors that are trained on the same labels.

python scripts/results/few_labels.py --train_file TSV --test_file TSV --start FOLDER --output_file FILE

Rows are drawn for each seed, a smaller draw from the larger one, none with a text of the test; a fifth
are the dev pairs. Trained as `pipeline` does: batches of 32, 20 passes. Each training adds a line to FILE,
and the same command goes on where it was; the table comes at the end.

classifier         fine-tuned; the best accuracy on the dev pairs is kept
classifier, loss   fine-tuned; the least loss on the dev pairs is kept
texts apart        contrastive training, then --pooling cosine at a tenth of the rate, as `pipeline` does
vectors            of the start, and a head over u, v, |u - v|, u * v: logistic regression on all rows
pairs, cosent      the same after contrastive training, with that objective (SetFit, arXiv:2209.11055)
..., cosine        without the head: how similar both vectors are, and the cut that is best on all rows
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import ernie_pair

COLUMNS = ["text_a", "text_b", "label"]
TRAININGS = ("classifier", "classifier, loss", "texts apart", "vectors", "pairs", "cosent")


def read(path: str) -> pd.DataFrame:
    """Return the rows of a tsv of two texts and a label, with a header or without."""
    table = pd.read_csv(
        path, sep="\t", quoting=3, header=None, names=COLUMNS, dtype=str, keep_default_na=False
    )
    return table[table["label"].isin(["0", "1"])].astype({"label": int})


def draw(train: pd.DataFrame, rows: int, seed: int, folder: Path) -> dict:
    """Return the files of ``rows`` labels, four fifths to train on."""
    drawn = train.iloc[np.random.default_rng(seed).permutation(len(train))[:rows]]
    cut = rows - max(8, rows // 5)
    for name, part in {"train_file": drawn[:cut], "dev_file": drawn[cut:], "all": drawn}.items():
        part.to_csv(folder / f"{name}.tsv", sep="\t", quoting=3, header=False, index=False)
    return {name: str(folder / f"{name}.tsv") for name in ("train_file", "dev_file")}


def features(encoder: ernie_pair.TextEmbedder, rows: pd.DataFrame) -> np.ndarray:
    """Return u, v, |u - v|, u * v of each pair, float32 [N, 4 * D]."""
    u, v = (np.asarray(encoder.embed(rows[name].tolist())) for name in COLUMNS[:2])
    return np.hstack([u, v, np.abs(u - v), u * v])


def cosines(parts: np.ndarray) -> np.ndarray:
    """Return the similarity of both vectors of `features`, float32 [N]."""
    u, v, _, product = np.split(parts, 4, axis=1)
    return product.sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)


def score(method: str, start: str, files: dict, test: pd.DataFrame, folder: Path, flags: dict) -> dict:
    """Train by ``method``; return {its name: a number per test pair, float64 [N]}, above 0.5 for class 1."""
    output = str(folder / "out")
    if method.startswith("classifier") or method == "texts apart":
        more = {"best_metric": "loss" if method.endswith("loss") else "accuracy"}
        if method == "texts apart":
            vectors = f"{output}.vectors"
            ernie_pair.train_embedding(model_name_or_path=start, output_dir=vectors, **files, **flags)
            start, more["pooling"] = f"{vectors}/model_last", "cosine"
            flags = {**flags, "learning_rate": flags["learning_rate"] / 10}
        more.update(model_name_or_path=start, output_dir=output, evaluation_strategy="epoch")
        ernie_pair.train(**more, **files, **flags)
        answers = ernie_pair.load(output).predict(test[COLUMNS[:2]].values.tolist())
        return {method: np.array(answers.probabilities)[:, 1]}
    if method != "vectors":
        ernie_pair.train_embedding(
            model_name_or_path=start, output_dir=output, objective=method, **files, **flags
        )
        start = f"{output}/model_last"
    encoder, rows = ernie_pair.open_embedder(start), read(str(folder / "all.tsv"))
    strengths = np.logspace(-5, 1, 7)
    head = LogisticRegressionCV(
        Cs=strengths, cv=5, l1_ratios=(0,), max_iter=2000, scoring="neg_log_loss", use_legacy_attributes=False
    )
    known, asked = features(encoder, rows), features(encoder, test)
    model, near = make_pipeline(StandardScaler(), head).fit(known, rows["label"]), cosines(known)
    cut = max((-2.0, *near), key=lambda cut: ((near > cut) == rows["label"]).mean())
    return {method: model.predict_proba(asked)[:, 1], f"{method}, cosine": cosines(asked) - cut + 0.5}


def measure(args: argparse.Namespace) -> pd.DataFrame:
    """Make the trainings that are missing; return a row for each."""
    output, train, test = Path(args.output_file), read(args.train_file), read(args.test_file)
    known = {*test["text_a"], *test["text_b"]}
    train = train[~train["text_a"].isin(known) & ~train["text_b"].isin(known)]
    test = test.sample(min(args.test_rows, len(test)), random_state=0)
    done = [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []
    have = {(one["method"], one["rows"], one["seed"]) for one in done}
    each = ((m, int(n), s) for s in range(args.seeds) for n in args.rows.split(",") for m in TRAININGS)
    for method, rows, seed in [one for one in each if one not in have]:
        flags = {
            "max_seq_len": args.max_seq_len,
            "learning_rate": args.learning_rate,
            "seed": seed,
            "device": "cpu",
        }
        flags.update(batch_size=32, epochs=20, logging_freq=1000)
        with tempfile.TemporaryDirectory(prefix="few-") as place:
            files = draw(train, rows, seed, Path(place))
            found = score(method, args.start, files, test, Path(place), flags)
        for name, numbers in reversed(found.items()):
            accuracy = float(((numbers > 0.5) == test["label"]).mean())
            line = {"method": name, "rows": rows, "seed": seed, "accuracy": accuracy}
            done.append({**line, "auc": float(roc_auc_score(test["label"], numbers))})
            with output.open("a") as file:
                file.write(json.dumps(done[-1]) + "\n")
    return pd.DataFrame(done)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("train_file", "test_file", "start", "output_file"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rows", default="32,128,512")
    for name, default in {"seeds": 5, "test_rows": 3000, "max_seq_len": 64, "learning_rate": 3e-4}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    table = measure(parser.parse_args()).groupby(["method", "rows"])[["auc", "accuracy"]].agg(["mean", "std"])
    print(table.round(4).to_string())


if __name__ == "__main__":
    main()
