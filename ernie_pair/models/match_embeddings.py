"""Which tokens of a pair stand in its other text too: the match embeddings of a classifier.

A model with ``match_embeddings`` in its config.json has LEVELS more rows per token type in its table of token
types. They begin as copies of the row of the type, so that a pretrained start computes what it computed. A
token takes the row of its type and of the longest run of tokens, up to LEVELS, that it stands in and that
both texts have. `networks.encoders.match_levels` computes that from the ids inside the graph: files of pairs,
tokenizers and the inputs of exports stay as they are.

Exact match as a feature of a token: Chen et al. 2017, arXiv:1704.00051 (DrQA); marked for an encoder:
Boualili et al. 2020 (MarkedBERT)."""

from dataclasses import replace
from typing import Union

from ernie_pair.core.errors import InputError
from ernie_pair.models.families import FAMILIES, OF_MATCH
from ernie_pair.models.source import CONVERSION, ModelSource
from ernie_pair.models.spec import architecture_in
from ernie_pair.models.tokenizers import read_tokenizer


def with_match(source: ModelSource, asked: Union[bool, str]) -> ModelSource:
    """Return ``source`` with match embeddings or without, as --match_embeddings ``asked``: true, false, auto.

    auto keeps what a trained classifier has, gives them to random weights and to what was pretrained here,
    and leaves a published model as it is, which PaddleNLP and transformers load. `read_weights` of what is
    returned fits. Raises InputError for a model that cannot have them.
    """
    spec = source.spec
    can_have = FAMILIES[spec.family].takes_types and spec.token_types > 0
    if asked is True and not can_have:
        raise InputError(
            f"--match_embeddings true: {source.name} has no token types, which they are rows of; leave it out"
        )
    is_trained = "Classif" in architecture_in(spec.config) or bool(spec.model_class)
    usual = spec.has_match or not is_trained and can_have and _is_own(source)
    wanted = usual if asked == "auto" else asked
    if wanted == spec.has_match:
        return source
    if not wanted:
        config = {key: value for key, value in spec.config.items() if key not in OF_MATCH}
        return replace(source, spec=spec.with_config(config), match_in_file=source.has_match_in_file)
    one = read_tokenizer(source.vocab_file, spec)
    ids = {one.pad_id, one.cls_id, one.sep_id, one.mask_id, one.unk_id} - {-1}
    spec = spec.replace(**dict(zip(OF_MATCH, (True, sorted(ids)))))
    return replace(source, spec=spec, match_in_file=source.has_match_in_file)


def _is_own(source: ModelSource) -> bool:
    """Return whether the weights are random, or of a pretraining with this package."""
    folder = source.folder
    is_converted = folder is not None and (folder / CONVERSION).is_file()
    return source.weights is None or source.weights.stem == "static_vars" or is_converted
