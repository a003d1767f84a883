"""scikit-learn's embedded 8×8 digits: nothing to download."""

from __future__ import annotations

import torch

from frcl.data.options import TrainOn
from frcl.data.streams import VALIDATION_SHARE, add_streams, task_with_validation
from frcl.data.tasks import Split, Task
from frcl.seeding import fork

TEST_SHARE = 0.2


def load_digits(seed: int, train_on: TrainOn = "train+validation") -> Task:
    """All ten digits as one task: of the 1,797 images a fifth is for testing and a twelfth for validation."""
    from sklearn import datasets

    pixels, labels = datasets.load_digits(return_X_y=True)
    images = Split(torch.tensor(pixels / 16.0, dtype=torch.float32), torch.tensor(labels, dtype=torch.int64))
    order = torch.randperm(len(images), generator=fork(seed, "digits/test"))
    tested = int(TEST_SHARE * len(images))
    held = round(VALIDATION_SHARE * len(images))
    generator = fork(seed, "digits/validation")
    learning, test = images[order[tested:]], images[order[:tested]]
    return task_with_validation("digits", learning, test, held=held, train_on=train_on, generator=generator)


add_streams(
    "digits",
    lambda request: lambda seed: load_digits(seed, request.options.train_on).to(request.device),
    split="5 tasks, 0/1 to 8/9, of scikit-learn's 8×8 digits; nothing to download",
    permuted="10 tasks, all ten 8×8 digits with permuted pixels; nothing to download",
)
