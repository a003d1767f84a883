"""A stream with unknown task boundaries: the learner detects them (Section 3 of the paper)."""

import torch

import frcl

generator = torch.Generator().manual_seed(1)
net = frcl.MLP(16, (64, 64))
learner = frcl.FRCL(net, points=20, detector=frcl.BoundaryDetector(threshold=5.0))

# three tasks of 150 minibatches; the inputs of each task are two clouds of points
clouds = [2 * torch.randn(2, 16, generator=generator) for _ in range(3)]
for step in range(450):
    y = torch.randint(2, (64,), generator=generator)
    x = clouds[step // 150][y] + torch.randn(64, 16, generator=generator)
    log = learner.observe(x, y)
    if log.boundary:
        print(f"step {step}: the data changed (statistic {log.statistic:.1f}); task {log.task} begins")
learner.end_task()

for number, centres in enumerate(clouds):
    y = torch.randint(2, (1000,), generator=generator)
    p = learner.predict(centres[y] + torch.randn(1000, 16, generator=generator), task=number)
    print(f"task {number}: {float((p.labels == y).float().mean()):.1%} correct")
