"""Detectors of River on the scores of a stream, beside that of frcl: at which minibatches do the data change?"""

import torch

import frcl
from frcl.adapters.river import NAMES, found_in

generator = torch.Generator().manual_seed(1)
learner = frcl.FRCL(frcl.MLP(16, (64, 64)), points=20, detector=frcl.BoundaryDetector())
clouds = [2 * torch.randn(2, 16, generator=generator) for _ in range(3)]
scores, found = [], []
for step in range(450):
    y = torch.randint(2, (64,), generator=generator)
    x = clouds[step // 150][y] + torch.randn(64, 16, generator=generator)
    scores.append(float(learner.familiarity(x).log().mean()) if step else None)  # what all detectors see
    if learner.observe(x, y).boundary:
        found.append(step)

print(f"frcl: {found}")
for name in NAMES:
    print(f"{name}: {found_in(name, scores)}")
