"""Update all parameters with one op of the fused kernels instead of one op each.

Paddle's AdamW op runs on one thread, and clipping rewrites every gradient; here the clipping factor is an
input of the one op. The optimizer state stays in its variables.
"""

from typing import Any, Dict, Sequence, Tuple

import paddle

from ernie_pair.device.paddle_patches.static_programs import insert_described, remove_ops, sync
from ernie_pair.pretrain.optimizer.zero1 import updates_of

UPDATE, OPERATOR = "adamw", "ernie_pair_adamw"
# {name in our op: name in Paddle's op}; all but the gradients are also outputs.
SLOTS = {
    "Parameters": "Param",
    "Gradients": "Grad",
    "Moments1": "Moment1",
    "Moments2": "Moment2",
    "Powers1": "Beta1Pow",
    "Powers2": "Beta2Pow",
}
SETTINGS = ("beta1", "beta2", "epsilon")
GRADIENTS, SCALING = "Gradients", "elementwise_mul"


def fuse_updates(main: paddle.static.Program) -> None:
    """Replace the updates of ``main``, those of this process, by one op. The operator must have been loaded.

    Does nothing if they are not AdamW's, or differ in more than the decay.
    """
    block, updates = updates_of(main)
    if any(update.type != UPDATE for update in updates):
        return
    clipping = {op.output("Out")[0]: op for op in block.ops if op.type == SCALING and _is_of_clipping(op)}
    if len(set(map(_settings_of, updates))) > 1 or any(update.attr("lr_ratio") != 1.0 for update in updates):
        return
    if len({_factor_of(update, clipping) for update in updates}) > 1:
        return
    inputs = {f"{name}@VECTOR": [update.input(slot)[0] for update in updates] for name, slot in SLOTS.items()}
    outputs = {f"{name}Out@VECTOR": inputs[f"{name}@VECTOR"] for name in SLOTS if name != GRADIENTS}
    inputs["Rate"] = updates[0].input("LearningRate")
    skip = updates[0].input("SkipUpdate") if "SkipUpdate" in updates[0].input_names else []
    if skip:
        inputs["Skip@OPTIONAL"] = skip
    if clipping:
        scaled = [clipping[name] for name in inputs[f"{GRADIENTS}@VECTOR"]]
        inputs[f"{GRADIENTS}@VECTOR"] = [op.input("X")[0] for op in scaled]
        inputs["Factor@OPTIONAL"] = scaled[0].input("Y")  # the same for all: it is the global norm's
    attrs = _attributes_of(updates)
    place = [op.type for op in block.ops].index(UPDATE)
    removed = {SCALING, UPDATE}
    remove_ops(block, lambda op: op.type in removed and (op.type == UPDATE or _is_of_clipping(op)))
    place -= len(clipping)  # they came before it
    insert_described(block, place, OPERATOR, inputs, outputs, attrs)
    sync(main)


def _attributes_of(updates: Sequence) -> Dict:
    known = updates[0].all_attrs()
    decays = [update.attr("coeff") * update.attr("with_decay") for update in updates]
    return {**{name: known[name] for name in SETTINGS}, "op_role": known["op_role"], "decays": decays}


def _settings_of(update) -> Tuple:
    """Return the settings of which the one op has a single value for all parameters."""
    skip = update.input("SkipUpdate") if "SkipUpdate" in update.input_names else []
    return (*update.input("LearningRate"), *skip, *(update.attr(name) for name in SETTINGS))


def _factor_of(update, clipping: Dict[str, Any]) -> str:
    """Return the variable that scales the gradient of ``update``, '' if it is not clipped."""
    scaling = clipping.get(update.input("Grad")[0])
    return "" if scaling is None else scaling.input("Y")[0]


def _is_of_clipping(op) -> bool:
    return "gradient_clip" in op.all_attrs().get("op_namescope", "")
