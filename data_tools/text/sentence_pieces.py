"""Read a model of sentencepiece: a message of protobuf, of which only what is used here is described.

The description in sentencepiece 0.2.3 itself wants protobuf 7, which the stack of Paddle 2.6 does not take.
"""

from typing import Dict, List, NamedTuple, Tuple

from data_tools.files.installation import import_optional

UNIGRAM = 1
# {message: {field: (number, type)}}; a type that is no message is one of protobuf's.
MESSAGES: Dict[str, Dict[str, Tuple[int, str]]] = {
    "Piece": {"piece": (1, "STRING"), "score": (2, "FLOAT")},
    "Trainer": {"model_type": (3, "INT32")},
    "Normalizer": {"precompiled_charsmap": (2, "BYTES")},
    "Model": {"pieces": (1, "Piece"), "trainer": (2, "Trainer"), "normalizer": (3, "Normalizer")},
}
MANY, DEFAULTS = ("pieces",), {"model_type": str(UNIGRAM)}


class SentencePieces(NamedTuple):
    """``pieces``: each with its score, in the order of their ids. ``charsmap``: how to normalize, or b""."""

    pieces: List[Tuple[str, float]]
    is_unigram: bool
    charsmap: bytes


def read_sentence_pieces(content: bytes) -> SentencePieces:
    """Return what the file ``content`` holds. Raises google.protobuf.message.DecodeError for another."""
    model = _message_class()()
    model.ParseFromString(content)
    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    return SentencePieces(pieces, model.trainer.model_type == UNIGRAM, model.normalizer.precompiled_charsmap)


def _message_class():
    """Return the class of protobuf's messages that are a model."""
    import_optional("google.protobuf", "predict")
    from google.protobuf import descriptor_pool, message_factory
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

    file = FileDescriptorProto(name="ernie_pair/sentence_pieces.proto", package="sentence_pieces")
    for message, fields in MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            field = described.field.add(name=name, number=number)
            many = name in MANY
            field.label = FieldDescriptorProto.LABEL_REPEATED if many else FieldDescriptorProto.LABEL_OPTIONAL
            if kind in MESSAGES:
                field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".sentence_pieces.{kind}"
            else:
                field.type = getattr(FieldDescriptorProto, f"TYPE_{kind}")
            if name in DEFAULTS:
                field.default_value = DEFAULTS[name]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("sentence_pieces.Model"))
