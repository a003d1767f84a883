"""A stream with unknown task boundaries: the learner detects them, and predicts without being told the task."""

import torch

import frcl

generator = torch.Generator().manual_seed(1)
net = frcl.MLP(16, (64, 64))
learner = frcl.FRCL(net, points=20, detector=frcl.BoundaryDetector())

# A, B, A, C: four stretches of 150 minibatches; the inputs of A, B and C are two clouds of points each
clouds = [2 * torch.randn(2, 16, generator=generator) for _ in range(3)]
for step in range(600):
    centres = clouds[(0, 1, 0, 2)[step // 150]]
    y = torch.randint(2, (64,), generator=generator)
    x = centres[y] + torch.randn(64, 16, generator=generator)
    log = learner.observe(x, y)
    if log.boundary:
        print(f"step {step}: the data changed; task {log.task} begins")
learner.end_task()

for name, centres in zip("ABC", clouds, strict=True):
    y = torch.randint(2, (1000,), generator=generator)
    p = learner.predict(centres[y] + torch.randn(1000, 16, generator=generator))  # no task is named
    tasks = ", ".join(f"{share:.2f}" for share in p.task_probs.mean(0))
    print(f"{name}: {float((torch.as_tensor(p.labels) == y).float().mean()):.1%} correct; tasks inferred: {tasks}")
