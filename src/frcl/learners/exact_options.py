"""The options of the exact Gaussian process on fixed features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from frcl.exact.fixed import FeatureKind
from frcl.exact.sums import features_within
from frcl.options import NOT_NEGATIVE, SHARE, MethodOptions, option


@dataclass(frozen=True)
class ExactGPOptions(MethodOptions):
    """Everything that can be set on an `ExactGP`; the noise and the prior follow from the data."""

    batched_on_cpu: ClassVar[bool] = False  # there are no steps to batch

    features: int = option(540, "random features, without the bias; ignored where a network is given")
    memory: int | None = option(None, "instead of `features`: bytes of their triangle of products, 4 (K+1)(K+2)/2")
    kind: FeatureKind = option("auto", "random features: 'conv' of images, 'dense' of flat inputs; auto: by the shape")
    of_network: bool = option(False, "features of the network, as it is, instead of random ones")
    per_task: bool = option(False, "keep the sums of every task too, so that forget() needs no data; T times the bytes")

    held_out: float = option(
        0.0,
        "fit(): share of each class's examples, the last ones, on which the power of the class probabilities is chosen "
        "before they are added; 0: it is 3/4",
        SHARE, 0.5,
    )  # fmt: skip

    steps: int = option(1, "has no meaning: there are no gradient steps")
    batch_size: int = option(4096, "examples whose features are held at once")
    seed: int = option(0, "root of the random features", NOT_NEGATIVE)

    @property
    def count(self) -> int:
        """The number of random features, without the bias."""
        if self.memory is None:
            return self.features
        return max(1, features_within(self.memory))
