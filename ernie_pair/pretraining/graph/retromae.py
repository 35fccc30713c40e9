"""RetroMAE: a decoder too weak to write a text makes the vector of [CLS] carry it.

The encoder reads the text lightly masked. The decoder, one layer, reconstructs every token from the vector of
[CLS] and from what is left of the other tokens; see `seen_by_decoder` (Xiao et al. 2022, "RetroMAE:
Pre-training Retrieval-oriented Language Models Via Masked Auto-Encoder", arXiv:2205.12035, enhanced
decoding). Embeddings and the head of the masked tokens are the encoder's. B batch, S sequence, D hidden.
"""

import paddle
from paddle import nn

from ernie_pair.models.networks.encoders import attend_from


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
