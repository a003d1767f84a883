"""Shared fixtures: explicit generators, one thread, and a watch on the global random state."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


@pytest.fixture
def global_random_state_untouched() -> Iterator[None]:
    """Fails the test if anything in it moved torch's or numpy's global generators."""
    before, before_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    yield
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(before_numpy, np.random.get_state()[1])  # noqa: NPY002
