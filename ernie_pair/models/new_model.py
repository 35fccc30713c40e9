"""A model folder to start from scratch: config.json for a size of your choice, beside a vocabulary."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Literal

from data_tools.files.errors import InputError, counted
from data_tools.files.results import Results, settings_of
from data_tools.options.options import Options, option, refuse_empty
from data_tools.text.wordpiece import WordPiece
from ernie_pair.checkpoint.run_config import replace_config
from ernie_pair.models.config_json import FAMILIES, SHORTEST_PAIR, check_config
from ernie_pair.models.source import CONFIG, VOCAB
from ernie_pair.models.spec import TOKENIZER, tokenizer_json

BASE_RANGE, BASE_WIDTH = 0.02, 768
SIZES = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    "max_position_embeddings",
)
WITH_RELU = ("ernie", "skep", "mobilebert", "roformerv2")


@dataclass(frozen=True)
class NewModelConfig(Options):
    """Write the folder of a new model of the given size, to be trained with --from_scratch true."""

    EXAMPLE = "--vocab_file vocab.txt --output_dir small --hidden_size 312 --num_hidden_layers 4"

    vocab_file: str = option(help="the vocabulary, one token per line", group="data")
    output_dir: str = option(help="folder to create", group="data")
    model_type: str = option(
        "ernie",
        help="model family; ernie, ernie_gram and bert can be pretrained",
        group="model",
        choices=FAMILIES,
    )
    do_lower_case: bool = option(
        True, help="lower-case text and strip accents; false: for a cased vocabulary", group="model"
    )
    hidden_size: int = option(768, help="width of the hidden states", group="model", at_least=1)
    num_hidden_layers: int = option(12, help="encoder layers", group="model", unit="layers", at_least=1)
    num_attention_heads: int = option(
        12, help="attention heads per layer; must divide hidden_size", group="model", unit="heads", at_least=1
    )
    intermediate_size: int = option(
        3072, help="width inside the feed-forward blocks", group="model", at_least=1
    )
    max_position_embeddings: int = option(
        513, help="maximum sequence length", group="model", unit="tokens", at_least=SHORTEST_PAIR
    )
    hidden_act: Literal["auto", "gelu", "relu"] = option(
        "auto", help="activation of the feed-forward blocks; auto: the default of the family", group="model"
    )
    overwrite: bool = option(False, help="replace an existing model", group="data")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_dir")
        if self.hidden_size % self.num_attention_heads:
            raise InputError(
                f"--hidden_size {self.hidden_size} is not a multiple of --num_attention_heads "
                f"{self.num_attention_heads}; change one of them"
            )


def new_model(config: NewModelConfig) -> None:
    """Write the folder of a new model: config.json, tokenizer_config.json, vocab.txt.

    Raises InputError when the vocabulary cannot be used, or for sizes that no model has.
    """
    folder = Path(config.output_dir)
    results = Results(
        command="new-model",
        outputs=[folder / VOCAB, folder / TOKENIZER, folder / CONFIG],
        inputs={"vocab_file": [Path(config.vocab_file)]},
        settings=settings_of(config, "vocab_file", "output_dir"),
        overwrite=config.overwrite,
    )
    if results.are_done():
        return
    tokenizer = WordPiece.from_file(config.vocab_file, config.do_lower_case)
    settings = _settings_of(config, tokenizer)
    check_config(settings, "the new model")  # or no command could open it
    tokenizer_settings = tokenizer_json(config.model_type, config.do_lower_case, max_seq_len=0)
    with results.published() as (vocab, *drafts):
        vocab.write_bytes(Path(config.vocab_file).read_bytes())
        for draft, value in zip(drafts, (tokenizer_settings, settings)):
            draft.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    replace_config(folder, "new-model", config)
    size = (
        f"{counted(config.num_hidden_layers, 'layer')} x {config.hidden_size}, {tokenizer.vocab_size} tokens"
    )
    print(f"{folder}: {FAMILIES[config.model_type]}, {size}")


def _settings_of(config: NewModelConfig, tokenizer: WordPiece) -> Dict[str, object]:
    """Return the content of config.json."""
    sizes = {name: getattr(config, name) for name in SIZES}
    return {
        "model_type": config.model_type,
        # 0.02 is for a width of 768; a narrow model that starts with it learns nothing for a long time.
        "initializer_range": initial_range(config.hidden_size),
        "vocab_size": tokenizer.vocab_size,
        **sizes,
        "hidden_act": _activation_of(config),
        "type_vocab_size": 2,
        "pad_token_id": tokenizer.pad_id,
        **_more_settings(config.model_type, config.hidden_size),
    }


def _activation_of(config: NewModelConfig) -> str:
    if config.hidden_act != "auto":
        return config.hidden_act
    return "relu" if config.model_type in WITH_RELU else "gelu"


def settings_of_width(family: str, width: int) -> Dict[str, object]:
    """Return the keys of config.json that follow from another hidden_size, beside itself."""
    return {"initializer_range": initial_range(width), **_more_settings(family, width)}


def initial_range(width: int) -> float:
    """Return the deviation of the random weights of a model of this width."""
    return round(BASE_RANGE * math.sqrt(BASE_WIDTH / width), 4)


def _more_settings(family: str, width: int) -> Dict[str, object]:
    """Return sizes that PaddleNLP would otherwise take from the family's published models."""
    if family in ("ernie_gram", "electra", "roformer", "albert", "squeezebert"):
        return {"embedding_size": width}
    if family == "nezha":
        return {"use_relative_position": True}
    if family == "tinybert":
        return {"fit_size": width}
    if family == "mobilebert":  # without its bottlenecks, which are for a published size
        return {"embedding_size": width, "true_hidden_size": width, "use_bottleneck": False}
    return {}
