"""The options of training by minibatches that every method has: how many steps, by which optimiser, at which rates."""

from __future__ import annotations

from dataclasses import dataclass

from frcl.engine.train import Method, Rule
from frcl.options import NOT_NEGATIVE, POSITIVE, SHARE, MethodOptions, option


@dataclass(frozen=True)
class OptimiserOptions(MethodOptions):
    """Steps, and how the parameters are moved by each of them."""

    steps: int = option(1000, "gradient steps of fit() per task")
    batch_size: int = option(128, "minibatch size of fit()")
    lr: float = option(1e-3, "learning rate", POSITIVE)
    backbone_lr: float | None = option(None, "learning rate of the network's weights; None: lr", POSITIVE)
    optimiser: Method = option("adam", "Adam, AdamW, or stochastic gradient descent with momentum")
    momentum: float = option(0.9, "of 'sgd'", SHARE)
    weight_decay: float = option(
        0.0, "of the network's weights: added to their gradient times them; 'adamw': apart from it", NOT_NEGATIVE
    )
    clip_norm: float | None = option(None, "largest norm of a gradient, which is scaled down to it", POSITIVE)
    warm_up: float = option(0.0, "fit(): over this share of the steps, the first ones, lr rises from zero", SHARE)
    lr_decay: float = option(0.0, "fit(): over this share of the steps, the last ones, lr falls to zero", SHARE)

    bfloat16: bool = option(
        False, "the network's passes in bfloat16 (torch.autocast); everything after its features stays as it is"
    )

    @property
    def rule(self) -> Rule:
        """How parameters are moved."""
        return Rule(self.optimiser, self.momentum, self.weight_decay, self.backbone_lr, self.clip_norm)
