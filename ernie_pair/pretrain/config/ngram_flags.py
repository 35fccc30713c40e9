"""The flag of ERNIE-Gram's n-gram objective, and what it cannot be combined with."""

from dataclasses import dataclass

from data_tools.base.errors import InputError
from data_tools.base.options import option
from data_tools.samples.masking_flags import MaskingFlags

# Flags that say which words are masked together; with a lexicon, the lexicon decides.
OF_DRAWN_WORDS = ("max_ngrams", "favor_longer_ngram", "geometric", "level_weights", "masking_fn")


@dataclass(frozen=True)
class NgramFlags(MaskingFlags):
    """A part of `PretrainConfig`."""

    ngram_lexicon: str = option(
        "",
        help="ngrams.txt of ernie-pair build-ngrams, for the ERNIE-Gram objective: an n-gram is masked by "
        "one [MASK] and predicted as a whole; empty: single tokens only",
        group="data",
    )

    def __post_init__(self):
        super().__post_init__()
        for name in OF_DRAWN_WORDS:
            asked = getattr(self, name)
            if self.ngram_lexicon and asked != getattr(MaskingFlags, name):
                told = str(asked).lower() if isinstance(asked, bool) else asked
                raise InputError(
                    f"--ngram_lexicon determines what is masked together, and --{name} {told} contradicts "
                    "it; leave one of them out"
                )
