"""The floating-point operations of a training step of a pair classifier."""

from typing import Union

from ernie_pair.engine.flops import EncoderSize, count_classifier, count_encoder
from ernie_pair.pair.config.pair_config import PairConfig
from ernie_pair.pair.model.classifier import PairClassifier
from ernie_pair.pair.model.plain_model import PlainModel
from ernie_pair.pair.step.freezing import num_frozen_layers


class StepOperations:
    """Counts the operations of training ``model`` as ``config`` says.

    R-Drop and --symmetric let every pair pass twice, FGM every batch. Frozen layers pass forward alone.
    """

    def __init__(self, config: PairConfig, model: PairClassifier):
        spec = model.spec
        self.size = EncoderSize(spec.num_layers, spec.hidden_size, spec.intermediate_size)
        self.trained = self.size._replace(
            layers=spec.num_layers - (num_frozen_layers(config, spec.num_layers) or 0)
        )
        self.passes = config.passes_of_a_pair
        self.num_classes, self.first_token_only = model.num_classes, model.pooling == "cls"

    def count(self, batch: int, length: int) -> int:
        """Return the operations of one micro-batch of ``batch`` pairs of ``length`` tokens."""
        forward, trained = (
            count_encoder(size, batch, length, batch if self.first_token_only else None)
            for size in (self.size, self.trained)
        )
        head = count_classifier(self.size, batch, self.num_classes)
        return self.passes * (forward + head + 2 * (trained + head))


class PlainOperations:
    """Estimates the operations of training a layer of the user's own: two per weight and token forward.

    Twice as many for the gradients of what is trained. Products of states, as in attention, are not counted.
    """

    def __init__(self, config: PairConfig, model: PlainModel):
        trained = model.num_product_weights(trained_only=True)
        self.of_a_token = config.passes_of_a_pair * (2 * model.num_product_weights() + 4 * trained)

    def count(self, batch: int, length: int) -> int:
        """Return the operations of one micro-batch of ``batch`` pairs of ``length`` tokens."""
        return batch * length * self.of_a_token


def operations_of(config: PairConfig, model: Union[PairClassifier, PlainModel]):
    """Return what counts the operations of a step of ``model``."""
    return (PlainOperations if isinstance(model, PlainModel) else StepOperations)(config, model)
