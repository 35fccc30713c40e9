"""Another forward pass for one layer object, in place of that of its class.

PaddleNLP 2.8.1 wraps whatever is assigned to ``forward`` of Paddle's TransformerEncoderLayer
(`transformers.utils.adapt_stale_fwd_patch`), so it is set in the object's dictionary.
"""

from typing import Any, Optional

Forward = Any  # a callable; whoever set it knows more


def own_forward(layer) -> Optional[Forward]:
    """Return what stands in for the forward pass of ``layer``; None: that of its class is used."""
    return vars(layer).get("forward")


def set_forward(layer, forward: Optional[Forward]) -> None:
    """Let ``forward`` stand in for the forward pass of ``layer``; None: that of its class again."""
    vars(layer).pop("forward", None)
    if forward is not None:
        vars(layer)["forward"] = forward


def runs_its_class(layer, kind: type) -> bool:
    """Return whether calling ``layer`` runs the forward pass of ``kind`` and nothing else.

    A subclass, a hook (of weight norm, of quantisation, a person's own) and another forward pass are more.
    """
    held = vars(layer)
    hooks = held["_forward_pre_hooks"], held["_forward_post_hooks"]
    return type(layer) is kind and not any(hooks) and "forward" not in held


def sublayer_of(layer, name: str):
    """Return the layer of this name inside ``layer``, None without one; `getattr` takes microseconds."""
    return layer._sub_layers.get(name)


def parameter_of(layer, name: str):
    """Return the parameter of this name of ``layer`` itself, None where there is none."""
    return layer._parameters.get(name)
