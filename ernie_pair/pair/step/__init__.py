"""One optimizer step: loss, FGM, precision, data parallel, ZeRO stage 2."""
