"""scikit-learn's embedded 8×8 digits: nothing to download."""

from __future__ import annotations

import torch

from frcl.data.options import TrainOn
from frcl.data.streams import VALIDATION_SHARE, task_with_validation
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
    return task_with_validation(
        "digits",
        images[order[tested:]],
        images[order[:tested]],
        held=round(VALIDATION_SHARE * len(images)),
        train_on=train_on,
        generator=fork(seed, "digits/validation"),
    )
