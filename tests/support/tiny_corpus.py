"""A vocabulary of forty tokens and the corpora that are made with it."""

import json
import os
import subprocess
import sys
from hashlib import sha256
from itertools import islice

from places import ROOT

from data_tools.corpus.format import Corpus, corpus_paths
from data_tools.create_pretraining_data import CreateConfig, create_pretraining_data

CHARACTERS = list("我爱北京天安门学习。，！”“ab?.12") + ["ok", "hello", "world", "##2"]
TOKENS = [*"[PAD] [CLS] [SEP] [MASK]".split(), *CHARACTERS, *(f"##{c}" for c in "我爱北京天安门学习")]
TOKENS.append("[UNK]")


def write_vocab(folder):
    (folder / "model").mkdir()
    path = folder / "model" / "vocab.txt"
    path.write_text("".join(token + "\n" for token in TOKENS), encoding="utf-8")
    return str(path)


def lines_of(*texts):
    return "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts).encode("utf-8")


def make(folder, content, name="in.jsonl", run_map=None, **flags):
    """Run the tool on a file of that content; the sentences of each document, as tokens."""
    source = folder / name
    source.write_bytes(content)
    vocabulary = {} if "model_name" in flags else {"vocab_file": str(folder / "model" / "vocab.txt")}
    places = {"input_path": str(source), "output_prefix": str(folder / "out"), **vocabulary}
    settings = {**places, "chinese": False, **flags}  # whose flags do not follow from the text
    create_pretraining_data(CreateConfig(**settings), **({"run_map": run_map} if run_map else {}))
    return documents(settings["output_prefix"])


def stop_after(count):
    """A ``run_map`` that is interrupted after ``count`` items."""

    def run_map(function, items, workers):
        yield from map(function, islice(items, count))
        raise KeyboardInterrupt

    return run_map


def documents(prefix):
    corpus = Corpus(prefix, verify="full")
    sentences = [" ".join(TOKENS[i] for i in corpus[number]) for number in range(len(corpus))]
    return [sentences[begin:end] for begin, end in zip(corpus.docs, corpus.docs[1:])]


def hashes(folder, prefix="out"):
    """Of whatever stands there under that prefix, by name."""
    files = sorted(path for path in folder.iterdir() if path.name.startswith(prefix) and path.is_file())
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in files}


def leftovers(folder):
    return sorted(path.name for path in folder.iterdir() if path.name not in ("model", "in.jsonl"))


def command(*flags, input_path="in.jsonl", output_prefix="out"):
    """The tool's command line, to be run in the folder that ``write_vocab`` was given."""
    words = ["--input_path", input_path, "--output_prefix", output_prefix, "--vocab_file", "model/vocab.txt"]
    return [sys.executable, "-m", "data_tools.create_pretraining_data", "--chinese=false", *words, *flags]


def start(folder, *flags, environment=(), **settings):
    paths = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command(*flags),
        cwd=folder,
        env={**os.environ, **paths, **dict(environment)},
        stderr=subprocess.PIPE,
        text=True,
        **settings,
    )


def finished(folder):
    return [path.name for path in corpus_paths(folder / "out") if path.exists()]
