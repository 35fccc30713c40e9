"""Who makes and who reads the variables of a block, for whoever looks for a pattern of ops."""

from collections import defaultdict
from typing import Any, DefaultDict, Dict, List


class OpChains:
    """The ops of ``block``, followed along their variables. A method of no op, None, returns None."""

    def __init__(self, block):
        self.block = block
        self.makers: Dict[str, Any] = {}
        self.readers: DefaultDict[str, List] = defaultdict(list)
        for op in block.ops:
            self.makers.update((name, op) for name in op.output_arg_names)
            for name in op.input_arg_names:
                self.readers[name].append(op)

    def maker(self, op, slot: str, kind: str):
        """Return the op of type ``kind`` that makes the input ``slot`` of ``op``, or None."""
        if op is None or slot not in op.input_names:
            return None
        found = self.makers.get(op.input(slot)[0])
        return found if found is not None and found.type == kind else None

    def only_reader(self, op) -> Any:
        """Return the op that reads the output ``Out`` of ``op``, where it is the only one, or None."""
        if op is None or "Out" not in op.output_names:
            return None
        readers = self.readers[op.output("Out")[0]]
        return readers[0] if len(readers) == 1 else None
