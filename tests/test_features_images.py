"""The networks for colour images."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from frcl import CifarNet, OptionError, ResNet18
from frcl.experiment.config import NetworkOptions
from frcl.experiment.runner import build_network
from frcl.features import check_features

X = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_fromps_network_has_the_layers_and_the_size_of_the_paper():
    """3×3 convolutions 32, 32, 64, 64; 32 → 30 → 15 → 13 → 6 pixels; 2,304 → 512."""
    net = CifarNet()
    expected = (27 + 1) * 32 + (288 + 1) * 32 + (288 + 1) * 64 + (576 + 1) * 64 + (64 * 36 + 1) * 512
    assert sum(p.numel() for p in net.parameters()) == expected
    weights = dict(net.named_parameters())
    h = (X - 0.5) / 0.25
    for first, second in ((0, 2), (5, 7)):
        h = F.relu(F.conv2d(h, weights[f"layers.{first}.weight"], weights[f"layers.{first}.bias"], padding=1))
        h = F.relu(F.conv2d(h, weights[f"layers.{second}.weight"], weights[f"layers.{second}.bias"]))
        h = F.max_pool2d(h, 2)
    h = F.relu(F.linear(h.flatten(1), weights["layers.11.weight"], weights["layers.11.bias"]))
    torch.testing.assert_close(net(X), h)
    assert check_features(net, X) == net.outputs == 512


def test_resnet18_has_the_weights_of_resnet18_without_its_classifier():
    """11,173,962 with ten classes and batch norm on CIFAR; GroupNorm has as many weights as batch norm."""
    net = ResNet18()
    assert sum(p.numel() for p in net.parameters()) == 11_173_962 - 5_130
    assert not any(isinstance(one, nn.modules.batchnorm._BatchNorm) for one in net.modules())
    assert sum(isinstance(one, nn.Conv2d) for one in net.modules()) == 20  # 17 and three shortcuts


def test_a_residual_block_adds_its_input():
    net = ResNet18(width=8)
    block = net.layers[3]
    nn.init.zeros_(block.norm2.weight)
    x = torch.rand(2, 8, 5, 5, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(block(x), x)
    assert check_features(net, X) == net.outputs == 64


def test_networks_come_from_their_seed_alone(global_random_state_untouched):
    for make in (lambda seed: CifarNet(8, filters=(3,), width=4, seed=seed), lambda seed: ResNet18(width=4, seed=seed)):
        one, same, other = make(1), make(1), make(2)
        for a, b, c in zip(one.parameters(), same.parameters(), other.parameters(), strict=True):
            assert torch.equal(a, b)
            if a.ndim > 1:
                assert not torch.equal(a, c)


def test_networks_by_name():
    net = build_network(NetworkOptions(kind="cifar", widths=(32, 64, 512)), (3, 32, 32), 0)
    assert torch.equal(net(X), CifarNet(seed=0)(X))
    assert isinstance(build_network(NetworkOptions(kind="resnet18"), (3, 32, 32), 0), ResNet18)
    with pytest.raises(OptionError, match=r"takes \[channels, height, width\]; got \[28, 28\]"):
        build_network(NetworkOptions(kind="resnet18"), (28, 28), 0)


def test_sizes_that_do_not_fit_are_refused():
    for make in (
        lambda: CifarNet(4),
        lambda: CifarNet(width=0),
        lambda: CifarNet(filters=()),
        lambda: ResNet18(width=0),
    ):
        with pytest.raises(OptionError):
            make()
