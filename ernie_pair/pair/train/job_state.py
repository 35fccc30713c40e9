"""The content of a checkpoint of pair training, and how it is restored.

model.safetensors                       the weights, under structured names
distillation.safetensors                what a distillation trains along, and its model has not
config.json, vocab.txt, tokenizer_config.json    with them it loads as a model; earlier versions left them out
calibration.json                        with --symmetric average, see `PairJob`: it is asked as it learns
optimizer.safetensors                   the state of each, `classifier.weight.moment1`, and the loss scale
optimizer-00000-of-00002.safetensors    with --sharding: a process's part; the first's has the scale
"""

from fnmatch import fnmatch
from typing import Any, Dict, Iterator, Tuple

from ernie_pair.checkpoint.checkpoint_folder import Checkpoint, Content
from ernie_pair.models.networks.encoders import TRAINING_ONLY
from ernie_pair.train.step.amp import FINITE, INFINITE, SCALE
from ernie_pair.train.step.optimizer import refuse_other_state
from ernie_pair.weights.half_tensors import widen_tensors
from ernie_pair.weights.parameter_names import match_parameters
from ernie_pair.weights.weight_files import Arrays, from_safetensors

MODEL_FILE, ANY_OPTIMIZER = "model.safetensors", "optimizer*.safetensors"
BESIDE_FILE = f"{TRAINING_ONLY}.safetensors"
SCALE_STATE = (SCALE, FINITE, INFINITE)


def state_files(job) -> Iterator[Tuple[str, Content]]:
    """Yield (name, content) of the checkpoint files of this rank; the names differ between the ranks."""
    if job.process_group.rank == 0:
        own, beside = _own_and_beside(job.model.saved_tensors())
        yield MODEL_FILE, widen_tensors(own)
        if beside:
            yield BESIDE_FILE, widen_tensors(beside)
        if job.vocab_file is not None:
            yield from job.model.files_beside(job.vocab_file, job.config.max_seq_len).items()
    yield from job.parallel.files({} if job.loss_scale is None else job.loss_scale.arrays())


def _own_and_beside(parameters: Dict[str, Any]) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Part ``parameters`` into those of the model and those that are trained along."""
    beside = {name: p for name, p in parameters.items() if name.startswith(f"{TRAINING_ONLY}.")}
    return {name: p for name, p in parameters.items() if name not in beside}, beside


def restore(job, checkpoint: Checkpoint) -> None:
    """Restore ``job`` from what the ranks of a run wrote, however many they were and are.

    Everything is matched before anything is set. Raises CheckpointError.
    """
    weights: Arrays = {}
    for name in (MODEL_FILE, BESIDE_FILE):
        if name == MODEL_FILE or name in checkpoint.files:
            weights.update(from_safetensors(checkpoint.read(name), f"{checkpoint.folder}/{name}"))
    chosen = match_parameters(job.model.saved_tensors(), weights, f"{checkpoint.folder}/{MODEL_FILE}")
    parts = sorted(name for name in checkpoint.files if fnmatch(name, ANY_OPTIMIZER))
    where = f"{checkpoint.folder}/{parts[0] if len(parts) == 1 else ANY_OPTIMIZER}"
    state: Arrays = {}
    for name in parts:
        state.update(from_safetensors(checkpoint.read(name), f"{checkpoint.folder}/{name}"))
    # The loss scale may be switched on by --allow_change: then it starts afresh.
    scale = {name: state.pop(name) for name in SCALE_STATE if name in state}
    refuse_other_state(job.model, job.optimizer, state, where)
    job.skipped_updates = checkpoint.state().skipped_updates
    job.model.set(chosen)
    job.parallel.restore(state, where)
    if job.loss_scale is not None and len(scale) == len(SCALE_STATE):
        job.loss_scale.restore(scale)
