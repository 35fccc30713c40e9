"""The names of the weights that predict n-grams, which belong to pretraining and to one lexicon."""

from ernie_pair.weights.weight_files import Arrays

NGRAM_HEAD = "cls.ngrams."


def without_ngram_head(arrays: Arrays) -> Arrays:
    """Return ``arrays`` {structured name: array} without the n-gram head."""
    return {name: array for name, array in arrays.items() if not name.startswith(NGRAM_HEAD)}
