"""Settings of Paddle's layers that only private names of Paddle 2.6.2 tell."""


def epsilon_of(norm) -> float:
    """Return what a LayerNorm adds to the variance."""
    return float(norm._epsilon)


def padding_id_of(embedding) -> int:
    """Return the id whose row of an Embedding is zero and does not train; -1: none."""
    padding_id = embedding._padding_idx
    return -1 if padding_id is None else int(padding_id)
