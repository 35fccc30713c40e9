"""The stand-in that is timed instead of a run: same widths and lengths, but smaller.

It is smaller in ways that favour no number of processes: two layers, random weights, and as many samples in a
forward pass as take about PASS_SECONDS.
"""

from dataclasses import replace
from typing import Union

from ernie_pair.device.cpu_env import cpu_threads
from ernie_pair.model_files.source import NAME_FAMILY, ModelSource, open_model, refuse_no_family
from ernie_pair.model_files.spec import ModelSpec
from ernie_pair.pair.config.pair_config import TrainConfig
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig

LAYERS = 2
PASS_SECONDS, THREAD_FLOPS = 0.3, 5e10  # operations of a thread per second, roughly: it need not be exact


def open_stand_in(config: Union[TrainConfig, PretrainConfig]) -> ModelSource:
    """Return the model of a run with at most LAYERS layers, and without weights. Raises InputError."""
    source = open_model(config.model_name_or_path, model_type=config.model_type or "", from_scratch=True)
    refuse_no_family(source, NAME_FAMILY)
    spec = source.spec.replace(num_hidden_layers=min(LAYERS, source.spec.num_layers))
    return replace(source, spec=spec, weights=None)


def rows_in_pass(asked: int, tokens: int, spec: ModelSpec) -> int:
    """Return how many samples of ``tokens`` tokens a forward and backward pass takes: ``asked``, or fewer."""
    parameters = 12 * spec.hidden_size**2 * spec.num_layers
    seconds = 6 * parameters * max(tokens, 1) / (THREAD_FLOPS * cpu_threads())
    return max(1, min(asked, int(PASS_SECONDS / seconds)))
