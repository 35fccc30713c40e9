"""The model of pretraining in the graph that is being built, and what its parameters are called.

RetroMAE adds a decoder too weak to write a text, which makes the vector of [CLS] carry it. The encoder reads
the text lightly masked. The decoder, one layer, reconstructs every token from the vector of [CLS] and from
what is left of the other tokens; see `seen_by_decoder` (Xiao et al. 2022, "RetroMAE: Pre-training
Retrieval-oriented Language Models Via Masked Auto-Encoder", arXiv:2205.12035, enhanced decoding). Embeddings
and the head of the masked tokens are the encoder's. B batch, S sequence, D hidden.
"""

from copy import deepcopy
from typing import TYPE_CHECKING, NamedTuple, Optional

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

from data_tools.samples.masking import NO_LABEL
from ernie_pair.core.errors import InputError
from ernie_pair.models.families import SPECIFIC, get_counterpart
from ernie_pair.models.networks.encoders import attend_from
from ernie_pair.models.spec import CONFIG, NO_MODEL, ModelSpec
from ernie_pair.pretraining.config.pretrain_config import check_family
from ernie_pair.runtime.paddle_patches.layers import make_gelu_new, set_epsilon
from ernie_pair.runtime.paddle_patches.paddlenlp_import import static_init, transformers
from ernie_pair.weights.parameter_names import NEVER_LOGIT, cut_vocabulary, pad_vocabulary, padded_size
from ernie_pair.weights.weight_files import Arrays

if TYPE_CHECKING:
    from paddlenlp.transformers import PretrainedConfig


class ErnieGramForPretraining(transformers.ErnieGramPretrainedModel):
    """ErnieGram with the heads of pretraining: an ErnieGramModel, and cls.* as in ErnieForPretraining."""

    def __init__(self, config):
        super().__init__(config)
        self.ernie_gram = transformers.ErnieGramModel(config)
        self.cls = transformers.ernie.modeling.ErniePretrainingHeads(config)
        self.tie_weights()

    def get_input_embeddings(self):
        """Return the embedding that the decoder is tied to."""
        return self.ernie_gram.embeddings.word_embeddings

    def get_output_embeddings(self):
        """Return the decoder of the masked tokens."""
        return self.cls.predictions.decoder

    def forward(self, input_ids, token_type_ids=None, masked_positions: Optional[paddle.Tensor] = None):
        """Compute the logits of masked tokens [P, V] and of the sentence order [B, 2].

        ``input_ids``, ``token_type_ids``: int64 [B, S]; ``masked_positions``: int64 [P], indices into the B x
        S tokens. Without them the first logits are [B, S, V].
        """
        sequence, pooled = self.ernie_gram(input_ids, token_type_ids=token_type_ids)
        return self.cls(sequence, pooled, masked_positions)


class NgramHead(nn.Layer):
    """The logits of ``num_ngrams`` n-grams from transformed states of ``hidden_size``."""

    def __init__(self, num_ngrams: int, hidden_size: int, initializer_range: float):
        super().__init__()
        self.num_ngrams = num_ngrams
        draw = nn.initializer.TruncatedNormal(0.0, initializer_range)
        self.weight = self.create_parameter([num_ngrams, hidden_size], default_initializer=draw)
        self.bias = self.create_parameter([num_ngrams], is_bias=True)

    def forward(self, states: paddle.Tensor) -> paddle.Tensor:
        """Return the logits [P, K] of ``states`` [P, H]."""
        return paddle.matmul(states, self.weight, transpose_y=True) + self.bias


NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
CLASSES = {
    "ernie": (transformers.ErnieConfig, transformers.ErnieForPretraining),
    "ernie_gram": (transformers.ErnieGramConfig, ErnieGramForPretraining),
    "bert": (transformers.BertConfig, transformers.BertForPretraining),
}
OWN_RANGE = ("ernie_gram", "bert")  # whose classes draw with initializer_range in `init_weights` alone


class Outputs(NamedTuple):
    """The outputs of the model as static variables; P masked slots, B samples, V vocabulary, K n-grams."""

    lm_logits_PV: paddle.Tensor
    sop_logits_B2: paddle.Tensor
    layers: list[paddle.Tensor]  # the output of each encoder layer, [B, S, D]
    ngram_logits_PK: Optional[paddle.Tensor] = None  # None without an n-gram lexicon
    decoder_logits_NV: Optional[paddle.Tensor] = None  # of what has a label; None without a decoder


class LossSums(NamedTuple):
    """Sums over the labelled tokens, samples and n-grams of one micro-batch; float32 [], losses in nats."""

    lm_loss: paddle.Tensor
    lm_correct: paddle.Tensor
    sop_loss: paddle.Tensor
    sop_correct: paddle.Tensor
    ngram_loss: Optional[paddle.Tensor] = None
    ngram_correct: Optional[paddle.Tensor] = None
    decoder_loss: Optional[paddle.Tensor] = None
    decoder_correct: Optional[paddle.Tensor] = None

    @property
    def recorded(self) -> list[paddle.Tensor]:
        """Return the sums that there are, in the order of the records."""
        return [each for each in self if each is not None]

    def weighted(self, weights: paddle.Tensor, has_order: bool) -> paddle.Tensor:
        """Return the loss by ``weights`` [2]: of all masked symbols, and of the order or of the decoder.

        The symbols are tokens and n-grams. Without the order its head and the pooler have no gradient, and
        stay as they are.
        """
        masked = self.lm_loss if self.ngram_loss is None else self.lm_loss + self.ngram_loss
        loss = masked * weights[0]
        if self.decoder_loss is not None:
            return loss + self.decoder_loss * weights[1]
        return loss + self.sop_loss * weights[1] if has_order else loss


def ernie_config(
    spec: ModelSpec, num_ngrams: int = 0, has_decoder: bool = False, **dropout: float
) -> "PretrainedConfig":
    """Return PaddleNLP's configuration of ``spec`` with the rates ``dropout``, by their names there, or 0.

    ``num_ngrams``: how many a head of their own predicts; ``has_decoder``: of RetroMAE; PaddleNLP has no such
    settings. The default family is ERNIE. Raises InputError for a family that is not pretrained here.
    """
    family = spec.family or "ernie"
    check_family(spec)
    settings = spec.to_config(model_type=family, **{**NO_DROPOUT, **dropout})
    if family == "ernie_gram":
        if spec.embedding_size not in (None, spec.hidden_size):
            raise InputError(
                f"{CONFIG}: embedding_size {spec.embedding_size} is not hidden_size {spec.hidden_size}, and "
                "PaddleNLP's ErnieGram has no layer between the two; make them equal"
            )
        settings.update(hidden_size=spec.hidden_size, embedding_size=spec.hidden_size)
    settings["layer_norm_eps"] = epsilon_of(spec)
    config = CLASSES[family][0].from_dict(settings)
    config.num_ngrams, config.has_decoder = num_ngrams, has_decoder
    return config


def epsilon_of(spec: ModelSpec) -> float:
    """Return the epsilon of all layer norms: of PaddleNLP's class, or what config.json states otherwise."""
    if spec.own_epsilon is not None:
        return spec.own_epsilon
    of_class = get_counterpart(spec.family or "ernie").layer_norm_eps
    return spec.config.get("layer_norm_eps", SPECIFIC) if of_class is None else of_class


def build_ernie(config: "PretrainedConfig", as_static: bool = False) -> nn.Layer:
    """Build the model, in the current mode; its parameter names do not depend on what was built before.

    ``as_static``: draw in the dynamic graph what a static program draws, see `static_init`. Raises
    InputError when ``config`` does not describe a model.
    """
    family, is_new = config.model_type, config.hidden_act == "gelu_new"
    if is_new:  # which Paddle's layers do not have
        config = deepcopy(config)
        config.hidden_act = "gelu"
    try:
        with paddle.utils.unique_name.guard():
            model = CLASSES[family][1](config)
    except NO_MODEL as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{CONFIG} describes no valid {family} model ({reason}); correct it") from None
    if family in OWN_RANGE and as_static:  # what they forget to draw there
        draw = nn.initializer.TruncatedNormal(0.0, model.config.initializer_range)
        for layer in model.sublayers():
            if isinstance(layer, (nn.Linear, nn.Embedding)):
                draw(layer.weight)
    set_epsilon(model, config.layer_norm_eps)
    if is_new:
        make_gelu_new([*encoder_of(model).encoder.layers, model.cls.predictions])
    return model


def build_padded(config: "PretrainedConfig", as_static: bool = False) -> nn.Layer:
    """Build the model with its vocabulary padded to a multiple of 8 rows; the added ones are never predicted.

    It has a head for n-grams, and a decoder, if ``config`` says so. ``as_static``: see `build_ernie`. Raises
    InputError when ``config`` does not describe a model.
    """
    config, vocab_size = deepcopy(config), config.vocab_size
    config.vocab_size = padded_size(vocab_size)
    model = build_ernie(config, as_static)
    if config.vocab_size > vocab_size and paddle.in_dynamic_mode():  # a program is given drawn weights
        values = np.zeros(config.vocab_size, np.float32)
        values[vocab_size:] = NEVER_LOGIT
        model.cls.predictions.decoder.bias.set_value(values)
        embedding = encoder_of(model).embeddings.word_embeddings.weight
        rows = embedding.numpy()
        rows[vocab_size:] = 0
        embedding.set_value(rows)
    if config.num_ngrams:
        with paddle.utils.unique_name.guard():  # next to the other heads of pretraining
            sizes = config.num_ngrams, model.config.hidden_size, model.config.initializer_range
            model.cls.ngrams = NgramHead(*sizes)
    if config.has_decoder:
        with paddle.utils.unique_name.guard("retromae_"):  # Paddle's own layers, of which the model has some
            model.cls.retromae = RetroDecoder(model.config)
    return model


def draw_static_init(model_config, seed: int) -> Arrays:
    """Return {structured name: float32 array} of what the start-up program of the static graph draws.

    The rows that pad the vocabulary are 0, with a bias that rules them out.
    """
    paddle.seed(seed)
    with paddle.utils.unique_name.guard(), static_init() as drawn:
        parameters = build_padded(model_config, as_static=True).state_dict()
    arrays = {name: drawn.get(one.name, one.numpy()) for name, one in parameters.items()}
    return pad_vocabulary(cut_vocabulary(arrays, model_config.vocab_size), model_config.vocab_size)


def run_ernie(model: nn.Layer, feeds: dict[str, paddle.Tensor]) -> Outputs:
    """Build the forward pass over the arrays of ``data_tools.samples.split_datasets.collate``.

    The model itself adds -1e4 to the attention scores of padding and makes position and task ids, so no mask,
    no positions and no task are fed.
    """
    layers: list[paddle.Tensor] = []
    hooks = [
        layer.register_forward_post_hook(lambda _, __, output: layers.append(output))
        for layer in encoder_of(model).encoder.layers
    ]
    states: list[paddle.Tensor] = []  # of the masked slots, transformed: what the decoder reads
    norm = model.cls.predictions.layer_norm
    hooks.append(norm.register_forward_post_hook(lambda _, __, output: states.append(output)))
    lm_logits, sop_logits = model(
        input_ids=feeds["input_ids"],
        token_type_ids=feeds["token_type_ids"],
        masked_positions=feeds["masked_positions"],
    )
    for hook in hooks:
        hook.remove()
    if "decoder_mask" in feeds:
        labels_BS, embeddings = feeds["decoder_labels"], encoder_of(model).embeddings
        tokens_BS = paddle.where(labels_BS >= 0, labels_BS, feeds["input_ids"])
        states_BSD = model.cls.retromae(layers[-1][:, 0], embeddings, tokens_BS, feeds["decoder_mask"])
        labelled_N = paddle.nonzero(labels_BS.flatten() >= 0).flatten()
        decoder_logits = model.cls.predictions(states_BSD, labelled_N)
        return Outputs(lm_logits, sop_logits, layers, decoder_logits_NV=decoder_logits)
    if "ngram_labels" not in feeds:
        return Outputs(lm_logits, sop_logits, layers)
    return Outputs(lm_logits, sop_logits, layers, model.cls.ngrams(states[0]))


def encoder_of(model: nn.Layer) -> nn.Layer:
    """Return the encoder within a model with heads."""
    return getattr(model, model.base_model_prefix)


def sum_losses(outputs: Outputs, feeds: dict[str, paddle.Tensor]) -> LossSums:
    """Sum cross entropy and hits over what has a label: slots that only fill up are ignored.

    The labels are int64, masked_lm_labels [P] and next_sentence_labels [B]; -1: none. With ngram_labels [P]
    one softmax covers vocabulary and lexicon, and the sums keep tokens and n-grams apart.
    """
    sop = list(map(paddle.sum, _losses_and_hits(outputs.sop_logits_B2, feeds["next_sentence_labels"])))
    if outputs.ngram_logits_PK is None:
        lm = map(paddle.sum, _losses_and_hits(outputs.lm_logits_PV, feeds["masked_lm_labels"]))
        if outputs.decoder_logits_NV is None:
            return LossSums(*lm, *sop)
        labels = feeds["decoder_labels"].flatten()
        loss, hits = map(paddle.sum, _losses_and_hits(outputs.decoder_logits_NV, labels[labels >= 0]))
        return LossSums(*lm, *sop)._replace(decoder_loss=loss, decoder_correct=hits)
    num_tokens, ngrams = outputs.lm_logits_PV.shape[-1], feeds["ngram_labels"]
    logits = paddle.concat([outputs.lm_logits_PV, outputs.ngram_logits_PK], axis=-1)
    # Of tokens and n-grams together: n-gram k is num_tokens + k.
    labels = paddle.where(ngrams >= 0, ngrams + num_tokens, feeds["masked_lm_labels"])
    loss, hits = _losses_and_hits(logits, labels)
    is_ngram = paddle.cast(ngrams >= 0, "float32")
    of_tokens, of_ngrams = (
        [paddle.sum(paddle.cast(each, "float32") * share) for each in (loss, hits)]
        for share in (1 - is_ngram, is_ngram)
    )
    return LossSums(*of_tokens, *sop, *of_ngrams)


def _losses_and_hits(logits: paddle.Tensor, labels: paddle.Tensor):
    loss = F.cross_entropy(logits, labels, ignore_index=NO_LABEL, reduction="none")
    return loss, paddle.cast(paddle.argmax(logits, axis=-1) == labels, "float32")


class RetroDecoder(nn.Layer):
    """The decoder for an encoder of ``config``; a training alone has it, and nothing loads it."""

    def __init__(self, config):
        super().__init__()
        draw = paddle.ParamAttr(initializer=nn.initializer.TruncatedNormal(0.0, config.initializer_range))
        self.layer = nn.TransformerEncoderLayer(
            config.hidden_size,
            config.num_attention_heads,
            config.intermediate_size,
            config.hidden_dropout_prob,
            "gelu",
            config.attention_probs_dropout_prob,
            act_dropout=0,
            weight_attr=draw,
        )

    def forward(self, first_BD, embeddings, tokens_BS, mask_BSS):
        """Return the states [B, S, D] from which the tokens are predicted.

        ``first_BD``: the encoder's states of [CLS]; ``embeddings``: the encoder's; ``tokens_BS``: int64, the
        whole text; ``mask_BSS``: bool, what each position sees of it.
        """
        places_SD = embeddings.position_embeddings.weight[: tokens_BS.shape[1]]

        def placed(states):
            return embeddings.dropout(embeddings.layer_norm(states + places_SD))

        first_B1D = first_BD.unsqueeze(1)
        words_BSD = placed(embeddings.word_embeddings(tokens_BS))
        context_BSD = paddle.concat([first_B1D, words_BSD[:, 1:]], axis=1)
        return attend_from(self.layer, placed(first_B1D), context_BSD, mask_BSS.unsqueeze(1))
