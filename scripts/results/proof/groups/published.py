"""A published model, all-MiniLM-L6-v2, here and in the libraries that it was made with."""

from functools import partial
from typing import Dict, List

from proof.experiment import PEER_PYTHON, Run, Words, script_words, words_of
from proof.figures import loss_figures, read_json, sided_figures
from proof.groups.pair_data import predictions, trained
from proof.groups.peer import OF_OURS, OURS, THEIRS
from proof.scale import Scale

TITLE = "A published model, beside its own libraries"
GROUP, LOSSES, VECTORS = "published", "losses", "vectors"
SIDES = {OURS: "this package", THEIRS: "Trainer of transformers"}
MODEL = "$WORK/published/minilm"  # both sides read it as it was published
FETCH: Words = ("scripts/other_libraries/fetch_minilm.py", MODEL)
FILES = {f"{part}_file": f"$DATA/pairs/mrpc/{part}.tsv" for part in ("train", "dev", "test")}
STEPS, TEXTS = 10, 1000
SAME: Dict[str, object] = {
    "max_seq_len": 128,
    "batch_size": 32,
    "learning_rate": 5e-5,
    "weight_decay": 0.01,
    "warmup_rate": 0.1,
    "precision": "fp32",
}
ONLY_OURS = {"label_map": "0=0,1=1", **dict(zip(OF_OURS, (1000000, 1000, 2)))}


def runs(scale: Scale) -> List[Run]:
    """Return the fine-tuning on MRPC by each side, the losses of its first steps, and the vectors."""
    return [*(_side(name, scale) for name in SIDES), _losses(), _vectors()]


def _side(name: str, scale: Scale) -> Run:
    """Return the training of all seeds by a side.

    The other needs the answers of `ours` only at its end, so that both can run at the same time.
    """
    folders = [trained(f"{GROUP}/{name}", seed) for seed in scale.seed_list]
    answers = {
        side: [predictions(f"{GROUP}/{side}", seed) for seed in scale.seed_list]
        for side in dict.fromkeys((name, OURS))
    }
    commands = [FETCH]
    for seed, folder, file in zip(scale.seed_list, folders, answers[name]):
        flags = {**SAME, "epochs": scale.epochs, "dropout": 0.1, "bucket": True, "logging_freq": 20}
        flags["seed"] = seed
        if name == THEIRS:
            commands.append(_train_peer(MODEL, folder, file, flags))
        else:
            asked = {"input_file": FILES["test_file"], "output_file": file, "scores": True}
            commands += [_train(MODEL, folder, flags), words_of("predict", model_path=folder, **asked)]
    read = partial(
        sided_figures,
        predictions=answers,
        test=FILES["test_file"],
        bootstrap=scale.bootstrap,
        folders=folders,
        precision=str(SAME["precision"]),
    )
    needs = () if name == OURS else (f"$WORK/{GROUP}/{OURS}",)
    return Run(name, SIDES[name], tuple(commands), read, scale.seed_list, needs=needs)


def _losses() -> Run:
    """Return the first steps of both from one classifier, without dropout, in the order of the file."""
    start, folders = "$RUN/start", {side: f"$RUN/{side}" for side in (OURS, THEIRS)}
    same = {**SAME, "max_steps": STEPS, "dropout": 0, "logging_freq": 1, "seed": 1234}
    order = {"streaming": True, "shuffle_buffer": 1, "bucket": False}
    commands = (
        FETCH,
        script_words("scripts/add_head.py", peer_python=PEER_PYTHON, model_path=MODEL, output_dir=start),
        _train(start, folders[OURS], {**same, **order}),
        _train_peer(start, folders[THEIRS], "$RUN/predictions.tsv", {**same, "in_order": True}),
    )
    return Run(LOSSES, "the first losses", commands, partial(loss_figures, folders=folders))


def _vectors() -> Run:
    """Return the comparison of the vectors of real texts with symbols in them."""
    file = "$RUN/vectors.json"
    asked = {"model_path": MODEL, "data": "$DATA", "output_file": file, "count": TEXTS}
    compare = script_words("scripts/compare_vectors.py", peer_python=PEER_PYTHON, **asked)
    return Run(VECTORS, "vectors", (FETCH, compare), lambda places: read_json(places.path(file)))


def _train(start: str, output: str, flags: Dict[str, object]) -> Words:
    files = {flag: FILES[flag] for flag in ("train_file", "dev_file")}
    return words_of("train", model_name_or_path=start, output_dir=output, **files, **flags, **ONLY_OURS)


def _train_peer(start: str, output: str, answers: str, flags: Dict[str, object]) -> Words:
    places = {"model_path": start, "output_dir": output, "output_file": answers, **FILES}
    return script_words("scripts/train_peer.py", peer_python=PEER_PYTHON, **places, **flags)
