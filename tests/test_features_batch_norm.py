"""Batch norm as a fixed function, and folded into convolutions."""

import copy

import pytest
import torch
from torch import nn

import frcl
from frcl import FRCL, NetworkError, freeze_batch_norm
from frcl.features import check_features, check_network

G = torch.Generator().manual_seed(0)
X = torch.rand(6, 3, 8, 8, generator=G)


class Block(nn.Module):
    """The residual block of a ResNet; `first` is read twice when `branch` is set."""

    def __init__(self, width, *, branch=False, twice=False):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width, affine=False)
        self.branch, self.twice = branch, twice

    def forward(self, x):
        first = self.conv1(x)
        h = torch.relu(self.bn1(first))
        h = self.bn2(self.conv2(h))
        if self.twice:
            h = self.bn2(self.conv2(h))
        return torch.relu(x + h + (first if self.branch else 0.0))


def trained(*, linear_norm=False, **options):
    """A small ResNet whose batch norm has statistics, γ and β that differ from their initial values."""
    torch.manual_seed(3)
    norm = [nn.Linear(5, 5), nn.BatchNorm1d(5)] if linear_norm else []
    net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), Block(5, **options),
                        nn.AdaptiveAvgPool2d(1), nn.Flatten(), *norm)  # fmt: skip
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_()
            module.running_var.uniform_(0.3, 4.0)
            if module.affine:
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)
    return net


def by_hand(module, x):
    """Batch norm by its formula, from the stored statistics."""
    shape = (1, -1, 1, 1)
    out = (x - module.running_mean.view(shape)) / (module.running_var.view(shape) + module.eps).sqrt()
    return out * module.weight.view(shape) + module.bias.view(shape)


def test_frozen_batch_norm_is_the_formula_with_its_statistics():
    net = freeze_batch_norm(trained())
    h = net[0](X)
    torch.testing.assert_close(net[1](h), by_hand(net[1], h))
    before = copy.deepcopy(net.state_dict())
    net(X + 5.0)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_the_given_network_is_not_changed_and_the_rest_keeps_its_mode():
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    frozen = freeze_batch_norm(net)
    assert net[1].training
    assert net[1].weight.requires_grad
    assert not frozen[1].training
    assert frozen[2].training
    assert frozen[0].weight.requires_grad


@pytest.mark.parametrize("train_affine", [False, True])
def test_the_affine_part_is_trained_or_not(train_affine):
    net = freeze_batch_norm(trained(), train_affine=train_affine)
    learner = FRCL(net, points=4, steps=5, lr=0.01)
    learner.fit(X, [0, 1, 0, 1, 0, 1])
    old, new = net.state_dict(), learner.net.state_dict()
    moved = {name for name in old if not torch.equal(old[name], new[name])}
    assert {"0.weight", "3.conv1.weight"} <= moved
    assert ({"1.weight", "1.bias", "3.bn1.weight"} <= moved) is train_affine
    assert not [name for name in moved if "running" in name or "num_batches" in name]


@pytest.mark.parametrize("train_affine", [False, True])
def test_folding_gives_the_same_function(train_affine):
    net = trained()
    frozen, folded = freeze_batch_norm(net), freeze_batch_norm(net, train_affine=train_affine, fold=True)
    assert [type(folded[1]), type(folded[3].bn1), type(folded[3].bn2)] == [nn.Identity] * 3
    assert (frozen(X) - folded(X)).abs().max() < 1e-5
    assert folded[3].conv1.bias.requires_grad
    assert not (frozen(X) - net(X)).abs().max() < 1e-2  # in training mode it is another function


def test_folding_a_frozen_convolution_keeps_it_frozen():
    net = trained()
    net[3].requires_grad_(False)
    folded = freeze_batch_norm(net, fold=True)
    assert not any(p.requires_grad for p in folded[3].parameters())
    assert all(p.requires_grad for p in folded[0].parameters())


@pytest.mark.parametrize("options", [{"branch": True}, {"twice": True}, {"linear_norm": True}])
def test_folding_leaves_what_cannot_be_folded(options):
    """A convolution that is read elsewhere, layers that are used twice, and a linear layer stay as they are."""
    net = trained(**options)
    frozen, folded = freeze_batch_norm(net), freeze_batch_norm(net, fold=True)
    left = [name for name, one in folded.named_modules() if isinstance(one, nn.modules.batchnorm._BatchNorm)]
    assert left == [{"branch": "3.bn1", "twice": "3.bn2", "linear_norm": "7"}[next(iter(options))]]
    assert (frozen(X) - folded(X)).abs().max() < 1e-5


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2)

    def forward(self, x):
        return self.bn(self.conv(x)).flatten(1) if x.sum() > 0 else x.flatten(1)


def test_a_network_that_cannot_be_traced_is_frozen_but_not_folded():
    check_network(freeze_batch_norm(Branching()))
    with pytest.raises(NetworkError, match="without fold=True"):
        freeze_batch_norm(Branching(), fold=True)


@pytest.mark.parametrize(
    ("net", "accepted"),
    [
        (nn.BatchNorm1d(4), False),
        (nn.BatchNorm1d(4).eval(), True),
        (nn.BatchNorm1d(4, track_running_stats=False).eval(), False),
        (nn.InstanceNorm1d(4, track_running_stats=True), False),
        (nn.InstanceNorm1d(4, track_running_stats=True).eval(), True),
        (nn.InstanceNorm1d(4), True),
    ],
)
def test_what_is_a_fixed_function_is_accepted(net, accepted):
    net = nn.Sequential(nn.Linear(4, 4), net)
    if accepted:
        check_network(net)
    else:
        with pytest.raises(NetworkError, match=r"frcl.freeze_batch_norm\(net\)"):
            check_network(net)


def test_frozen_networks_pass_the_checks_of_the_learner():
    assert check_features(freeze_batch_norm(trained()), X) == 5
    assert check_features(freeze_batch_norm(nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True),
                                                          nn.Flatten())), X) == 192  # fmt: skip


def test_statistics_that_do_not_exist_cannot_be_frozen():
    with pytest.raises(NetworkError, match="track_running_stats=False"):
        freeze_batch_norm(nn.BatchNorm1d(3, track_running_stats=False))
    with pytest.raises(NetworkError, match="expected a network"):
        freeze_batch_norm([nn.BatchNorm1d(3)])


def test_a_network_set_to_training_mode_between_two_tasks_is_refused():
    learner = FRCL(freeze_batch_norm(trained()), points=2, steps=1)
    learner.fit(X, [0, 1, 0, 1, 0, 1])
    learner.net.train()
    with pytest.raises(NetworkError, match="not frozen"):
        learner.fit(X, [0, 1, 0, 1, 0, 1])
    assert len(learner.tasks) == 1


def test_a_resnet_with_batch_norm_is_fine_tuned_on_two_tasks_and_keeps_the_first():
    generator = torch.Generator().manual_seed(5)
    y = torch.arange(80) % 2
    tasks = [torch.randn(80, 3, 8, 8, generator=generator) + 1.5 * (2 * y - 1)[:, None, None, None] * pattern
             for pattern in torch.randn(2, 3, 8, 8, generator=generator)]  # fmt: skip
    net = trained()
    net.train()
    for x in tasks * 5:  # statistics of data like this, as a pre-trained network has them
        net(x)
    frozen = freeze_batch_norm(net, train_affine=True)
    learner = frcl.FRCLPlus(frozen, points=20, steps=200, batch_size=40, lr=5e-3)
    for x in tasks:
        learner.fit(x, y)
    for number, x in enumerate(tasks):
        assert (learner.predict(x, task=number).labels == y).float().mean() > 0.9
    changed = [(a - b).abs().max() for a, b in zip(learner.net.parameters(), frozen.parameters(), strict=True)]
    assert min(changed) > 0
