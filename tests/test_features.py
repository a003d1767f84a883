import math

import pytest
import torch
from torch import nn

from frcl import FRCL, MLP, ConvNet, NetworkError, OptionError
from frcl.features import FEATURE_SCALE, FeatureMap, check_features, common_scale

X = torch.rand(10, 4, generator=torch.Generator().manual_seed(0))


def test_bias_column_and_scale():
    net = MLP(4, (5, 3))
    theta = dict(net.named_parameters())
    Phi = FeatureMap(net)({**theta, FEATURE_SCALE: torch.tensor(0.5)}, X)
    torch.testing.assert_close(Phi[:, :3], 0.5 * net(X))
    assert torch.equal(Phi[:, 3], torch.ones(10))
    torch.testing.assert_close(FeatureMap(net)(theta, X)[:, :3], net(X))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_scale_makes_the_root_mean_square_that_is_asked_for(dtype, generator):
    outputs = 3e-4 * torch.randn(50, 7, generator=generator, dtype=torch.float64).to(dtype) + 1e-4
    for s, size in ((common_scale(outputs), 1.0), (common_scale(outputs, 3.0), 3.0)):
        assert (s.dtype, s.shape) == (dtype, ())
        found = float((s * outputs).double().square().mean())
        assert found == pytest.approx(size**2, rel=10 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("value", [0.0, 1e-45, math.inf, math.nan])
def test_outputs_without_a_scale_keep_theirs(value):
    assert float(common_scale(torch.full((3, 2), value))) == 1.0


def test_mlp_last_layer_linear_or_relu():
    linear, relu = MLP(4, (6, 5), last="linear", seed=3), MLP(4, (6, 5), last="relu", seed=3)
    hidden = torch.relu(linear.layers[1](X))
    torch.testing.assert_close(linear(X), linear.layers[3](hidden))
    torch.testing.assert_close(relu(X), torch.relu(linear(X)))
    assert (linear(X) < 0).any()


def test_networks_come_from_their_seed_alone(global_random_state_untouched):
    for make in (lambda seed: MLP(4, (6,), seed=seed), lambda seed: ConvNet(8, filters=(3, 3), seed=seed)):
        one, same, other = make(1), make(1), make(2)
        for a, b, c in zip(one.parameters(), same.parameters(), other.parameters(), strict=True):
            assert torch.equal(a, b)
            if a.ndim > 1:
                assert not torch.equal(a, c)


def test_mlp_flattens_images():
    assert MLP(9, (2,))(torch.rand(5, 3, 3)).shape == (5, 2)


@pytest.mark.parametrize("size", [28, 8, 5, 1, 105])
@pytest.mark.parametrize("pooling", ["valid", "same"])
def test_convnet_sizes(size, pooling):
    net = ConvNet(size, pooling=pooling, filters=(4, 4, 4, 6))
    assert net(torch.rand(2, size, size)).shape == (2, net.outputs)
    assert net(torch.rand(2, 1, size, size)).shape == (2, net.outputs)


def test_convnet_on_28_by_28():
    assert ConvNet(28, pooling="valid").outputs == 64 * 1 * 1
    assert ConvNet(28, pooling="same").outputs == 64 * 2 * 2
    assert sum(p.numel() for p in ConvNet(28).parameters()) == 640 + 3 * (64 * 64 * 9 + 64)


def test_same_pooling_equals_a_brute_force_maximum():
    from frcl.features import _pool

    x = torch.randn(1, 1, 7, 7, generator=torch.Generator().manual_seed(1))
    pool, after = _pool(7, "same")
    out = pool(x)
    assert out.shape[-1] == after == 4
    for i in range(4):  # window of 3 centred on every second pixel, clipped at the border
        for j in range(4):
            part = x[0, 0, max(2 * i - 1, 0) : 2 * i + 2, max(2 * j - 1, 0) : 2 * j + 2]
            assert out[0, 0, i, j] == part.max()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize(("filters", "error"), [((64,), 1e-4), ((64, 64), 0.05)])  # later blocks may use TF32
def test_gradients_on_cuda_equal_those_in_double_precision_on_the_cpu(filters, error):
    net, x = ConvNet(28, filters=filters).double(), torch.rand(40, 28, 28, generator=torch.Generator().manual_seed(0))
    exact = torch.autograd.grad(net(x.double()).square().sum(), list(net.parameters()))
    net = net.float().cuda()
    ours = torch.autograd.grad(net(x.cuda()).square().sum(), list(net.parameters()))
    for a, b in zip(ours, exact, strict=True):
        assert (a.cpu() - b).norm() < error * b.norm()


class Wrong(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.function(x * self.weight)


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), "GroupNorm or LayerNorm"),
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1)), r"net.eval\(\)"),
        (Wrong(lambda x: x * torch.nan), "NaN or infinite features"),
        (Wrong(lambda x: x.sum()), r"expected a tensor \[8, K\]"),
        (Wrong(lambda x: x[:, None, :]), r"gave \(8, 1, 4\)"),
        (Wrong(lambda x: (x, x)), "gave tuple"),
        (Wrong(lambda x: x[:, :0]), r"gave \(8, 0\)"),
        (Wrong(lambda x: x.long()), "expected floating point"),
        (Wrong(lambda x: nn.functional.dropout(x, 0.5, training=True)), "something in it is random"),
        (Wrong(lambda x: x - x.mean(0)), "depend on the rest of the batch"),
        (Wrong(lambda x: x * (1 + 0.03 * (len(x) > 1))), "depend on the rest of the batch"),
        (nn.Linear(7, 3), "failed on inputs of shape"),
    ],
)
def test_networks_that_are_no_feature_map_are_refused(net, message, global_random_state_untouched):
    with pytest.raises(NetworkError, match=message):
        check_features(net, X)


def test_a_difference_that_rounding_can_make_between_batches_is_no_dependence():
    """Products in TF32 keep ten bits, and a batch of one may go another way than one of eight."""
    assert check_features(Wrong(lambda x: x * (1 + 0.01 * (len(x) > 1))), X) == X.shape[1]


def test_a_learner_refuses_a_network_when_it_is_made_or_when_data_shows_it():
    with pytest.raises(NetworkError, match="GroupNorm"):
        FRCL(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    learner = FRCL(Wrong(lambda x: x * torch.nan), points=2, steps=1)
    with pytest.raises(NetworkError, match="NaN or infinite features"):
        learner.fit(X, torch.arange(10) % 2)
    assert learner.tasks == ()


def test_quiet_dropout_and_other_normalisations_are_fine():
    for net in (
        nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).eval(),
        nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0)),
        nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4), nn.LayerNorm(4)),
    ):
        assert check_features(net, X) in (3, 4)


def test_bad_sizes_are_refused():
    for make in (
        lambda: MLP(0, (3,)),
        lambda: MLP(3, ()),
        lambda: MLP(3, (2,), last="tanh"),
        lambda: ConvNet(0),
        lambda: ConvNet(8, pooling="full"),
        lambda: ConvNet(8, filters=()),
    ):
        with pytest.raises(OptionError):
            make()
