"""Replace the forward pass of a single layer object.

PaddleNLP 2.8.1 wraps whatever is assigned to ``forward`` of Paddle's TransformerEncoderLayer
(`transformers.utils.adapt_stale_fwd_patch`), so it is set in the object's dictionary.
"""

from typing import Any, Optional

Forward = Any  # a callable; the code that set it knows its type


def own_forward(layer) -> Optional[Forward]:
    """Return the replaced forward pass of ``layer``; None: that of its class is used."""
    return vars(layer).get("forward")


def set_forward(layer, forward: Optional[Forward]) -> None:
    """Replace the forward pass of ``layer`` by ``forward``; None: use that of its class again."""
    vars(layer).pop("forward", None)
    if forward is not None:
        vars(layer)["forward"] = forward


def runs_its_class(layer, kind: type) -> bool:
    """Return whether calling ``layer`` runs the forward pass of ``kind`` and nothing else.

    A subclass, a hook (of weight norm, of quantisation, of the user) or another forward pass would run more.
    """
    held = vars(layer)
    hooks = held["_forward_pre_hooks"], held["_forward_post_hooks"]
    return type(layer) is kind and not any(hooks) and "forward" not in held


def sublayer_of(layer, name: str):
    """Return the layer of this name inside ``layer``, None without one; `getattr` takes microseconds."""
    return layer._sub_layers.get(name)


def parameter_of(layer, name: str):
    """Return the parameter of this name of ``layer`` itself, None if there is none."""
    return layer._parameters.get(name)
