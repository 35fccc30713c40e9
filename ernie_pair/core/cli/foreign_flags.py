"""What an unknown flag may mean: ours misspelt, or by the name in another package (foreign_flags.yaml)."""

from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Collection, Dict, Iterable, List, Tuple

import yaml

_BY_COMMANDS = "`ernie-pair train` trains, `evaluate` evaluates and `predict` predicts: leave it out"
LAUNCHED = "several processes are started by `ernie-pair launch COMMAND --gpus 0,1`: leave it out here"
# For `ernie-pair launch` itself.
LAUNCHING = "name the GPUs by --gpus 0,1, or give the number of processes on the CPU as --processes"
# For a command without --epochs: pretraining.
STEPS_ALONE = (
    "pretraining counts steps: give --max_steps, which is epochs x samples of the corpus / samples of a step "
    "(--global_batch_size); --dry_run true says how many epochs a number of steps makes"
)
_BY_ITSELF = "a run resumes from its newest checkpoint when its command is started again: leave it out"

# What has no flag here, and what to do instead.
ADVICE: Dict[str, str] = {
    **dict.fromkeys("do_train do_eval do_predict do_test do_export".split(), _BY_COMMANDS),
    **dict.fromkeys("gpus n_gpu num_gpus gpu_ids nproc_per_node local_rank nnodes".split(), LAUNCHED),
    **dict.fromkeys("resume resume_from_checkpoint auto_resume".split(), _BY_ITSELF),
    "disable_tqdm": "a bar is shown on a terminal and in a notebook alone; TQDM_DISABLE=1 in the environment "
    "hides it: leave it out",
    "load_best_model_at_end": "the best model is always kept, in OUTPUT_DIR/best: leave it out",
}


@cache
def foreign_flags() -> Dict[str, Tuple[str, ...]]:
    """Return {foreign name: our flags, in order of preference, with a value if the name implies one}."""
    table = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return {name: tuple(ours.split(" | ")) for ours, names in table.items() for name in names.split()}


def nearest_names(word: str, names: Collection[str]) -> List[str]:
    """Return the names that begin with a word, at most 3, or else the one that it misspells; [] for none.

    A name with further words before it, save_threshold for threshold, is another thing, not misspelt.
    """
    begun = sorted((name for name in names if len(word) > 2 and name.startswith(word)), key=len)
    others = [name for name in names if not set(word.split("_")) < set(name.split("_"))]
    return begun[:3] or get_close_matches(word, others, n=1)


def nearest(words: Iterable[str], names: Collection[str]) -> str:
    """Return a hint for words that are not flags: 'did you mean --max_steps?', and what lists the flags.

    ``names``: the flags of the command. Names of other packages (--num_train_epochs) come before spelling.
    """
    advice: List[str] = []
    meant: List[str] = []
    for word in words:
        key = word.lower().replace("-", "_")
        text = _advice_on(key, names)
        if text:
            advice.append(f"{text}; ")
            continue
        translated = [flag for flag in foreign_flags().get(key, ()) if flag.split()[0] in names]
        meant += (translated or nearest_names(key, names))[:1]
    hint = f"did you mean {', '.join('--' + flag for flag in dict.fromkeys(meant))}? " if meant else ""
    return f"{''.join(dict.fromkeys(advice))}{hint}--help lists the flags"


def _advice_on(key: str, names: Collection[str]) -> str:
    """Return what to do instead of a flag of other packages that does not exist here; '' for other words."""
    counts_steps = "epochs" not in names and {"max_steps", "global_batch_size"} <= set(names)
    if counts_steps and foreign_flags().get(key) == ("epochs",):
        return STEPS_ALONE
    advice = ADVICE.get(key, "")
    return LAUNCHING if advice == LAUNCHED and {"gpus", "processes"} <= set(names) else advice
