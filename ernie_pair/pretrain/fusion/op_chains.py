"""Producers and consumers of the variables of a block, to find patterns of ops."""

from collections import defaultdict
from typing import Any, DefaultDict, Dict, List


class OpChains:
    """The ops of ``block``, followed along their variables. For the op None, methods return None."""

    def __init__(self, block):
        self.block = block
        self.makers: Dict[str, Any] = {}
        self.readers: DefaultDict[str, List] = defaultdict(list)
        for op in block.ops:
            self.makers.update((name, op) for name in op.output_arg_names)
            for name in op.input_arg_names:
                self.readers[name].append(op)

    def maker(self, op, slot: str, kind: str):
        """Return the op of type ``kind`` that produces the input ``slot`` of ``op``, or None."""
        if op is None or slot not in op.input_names:
            return None
        found = self.makers.get(op.input(slot)[0])
        return found if found is not None and found.type == kind else None

    def only_reader(self, op) -> Any:
        """Return the only op that reads the output ``Out`` of ``op``, or None if there is not exactly one."""
        if op is None or "Out" not in op.output_names:
            return None
        readers = self.readers[op.output("Out")[0]]
        return readers[0] if len(readers) == 1 else None
