"""Feature networks φ(x; θ), the bias column, and the checks that a network must pass.

Any `nn.Module` from inputs [B, ...] to [B, K] serves, if it is one fixed function of each input: batch
norm frozen, no active dropout, finite output. The features of the model are the network's outputs times a scale,
with a column of ones appended for the bias.
"""

from frcl.features.batch_norm import freeze_batch_norm
from frcl.features.functional import (
    check_features,
    check_network,
    features,
    fixed_parts,
    has_convolutions,
    in_chunks,
    is_stackable,
    network_failures,
    times,
)
from frcl.features.image_networks import CifarNet, ResNet18
from frcl.features.networks import MLP, ConvNet

__all__ = [
    "MLP",
    "CifarNet",
    "ConvNet",
    "ResNet18",
    "check_features",
    "check_network",
    "features",
    "fixed_parts",
    "freeze_batch_norm",
    "has_convolutions",
    "in_chunks",
    "is_stackable",
    "network_failures",
    "times",
]
