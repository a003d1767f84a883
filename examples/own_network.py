"""Your own network and data: any nn.Module from inputs to features, any labels."""

import torch
from torch import nn

import frcl

net = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 32))  # no classification layer
learner = frcl.FRCL(net, points=12, steps=400, lr=3e-3)

generator = torch.Generator().manual_seed(0)
tasks = []
for names in (["near", "far"], ["left", "right"], ["north", "east", "south", "west"]):
    x = torch.randn(500, 2, generator=generator)
    side = {"near": x.norm(dim=1) > 1.1, "left": x[:, 0] > 0}.get(names[0], torch.atan2(x[:, 1], x[:, 0]) // 1.571 + 2)
    tasks.append((x, [names[int(i)] for i in side]))

for x, y in tasks:
    learner.fit(x, y)  # learn one task, keep 12 points of it, drop the data

for number, (x, y) in enumerate(tasks):
    p = learner.predict(x, task=number)
    accuracy = sum(a == b for a, b in zip(p.labels, y, strict=True)) / len(y)
    print(f"task {number} {p.classes}: {accuracy:.1%} correct, mean variance {float(p.variance.mean()):.2f}")

learner.save("own_network.frcl")
loaded = frcl.load("own_network.frcl", net)
assert torch.equal(loaded.predict(x, task=number).mean, p.mean)
