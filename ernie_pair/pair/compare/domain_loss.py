"""How well the initial weights of a model predict the masked words of a domain's held-out text."""

from typing import Dict

from data_tools.base.errors import InputError
from data_tools.corpus.format import Corpus
from data_tools.corpus.twin_vocab import vocabulary_of
from data_tools.ernie_dataset import ErnieDataset, masking_rule
from data_tools.samples.masking_flags import MaskingFlags
from data_tools.samples.sample_map import build_sample_map
from ernie_pair.model_files.source import ModelSource
from ernie_pair.model_files.tokenizer_files import read_tokenizer
from ernie_pair.pretrain.filling.masked_loss import Asking, measure_masked_loss
from ernie_pair.weights.parameter_matching import match_parameters
from ernie_pair.weights.parameter_names import HEADS, structured_names
from ernie_pair.weights.weight_files import as_float32

SEED, BATCH = 1234, 32
LM_HEAD, ORDER_HEAD = "cls.predictions.", "cls.seq_relationship."


def domain_loss(source: ModelSource, corpus: Corpus, num_samples: int, max_seq_len: int) -> Dict[str, float]:
    """Return lm_loss (mean over the masked tokens), perplexity, lm_accuracy and masked_tokens.

    The masks follow from the corpus alone, so every model of its vocabulary is asked the same. Raises
    InputError for a model that cannot be asked (without a head for masked words, of another vocabulary), and
    CheckpointError when its weights do not fit.
    """
    dataset, pad_id = _dataset_of(source, corpus, num_samples, max_seq_len)
    measured = measure_masked_loss(_masked_word_model(source), dataset, pad_id, Asking(max_seq_len, BATCH))
    return {name: measured[name] for name in ("lm_loss", "perplexity", "lm_accuracy", "masked_tokens")}


def _dataset_of(source: ModelSource, corpus: Corpus, num_samples: int, max_seq_len: int):
    """Return the samples, and the id of their padding."""
    tokenizer = vocabulary_of(
        [corpus], read_tokenizer(source.vocab_file, source.spec).without_control_tokens()
    )
    flags = MaskingFlags()
    rows = build_sample_map(
        corpus.docs,
        corpus.lens,
        range(corpus.num_documents),
        num_samples=num_samples,
        seed=SEED,
        **flags.map_settings(max_seq_len),
    )
    rule = masking_rule(tokenizer, **flags.rule_settings())
    return ErnieDataset(corpus, rows, rule, seed=SEED), tokenizer.pad_id


def _masked_word_model(source: ModelSource):
    from ernie_pair.pretrain.graph.model import build_ernie, ernie_config

    if source.spec.family not in ("ernie", "bert", ""):
        raise InputError(f"{source.name}: only an ERNIE or a BERT has a head for masked words here")
    if source.weights is None:
        raise InputError(f"{source.name} has no weights yet")
    model = build_ernie(ernie_config(source.spec, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    parameters, where = dict(model.state_dict()), str(source.weights)
    found = as_float32(structured_names(source.read_weights(), parameters, where), where)
    if not any(name.startswith(LM_HEAD) for name in found):
        raise InputError(f"{where} holds no head for masked words ({LM_HEAD}*)")
    may_miss = (ORDER_HEAD, f"{model.base_model_prefix}.pooler.")
    arrays = match_parameters(parameters, found, where, may_miss=may_miss, may_have=HEADS)
    for parameter in parameters.values():
        if parameter.name in arrays:
            parameter.set_value(arrays[parameter.name])
    model.eval()
    return model
