"""Shared fixtures: explicit generators, one thread, no figure left open, and a watch on the global random state."""

import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


@pytest.fixture(autouse=True)
def figures_closed() -> Iterator[None]:
    """Closes the figures of pyplot that a test leaves open, for example by running the code of a page."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture
def global_random_state_untouched() -> Iterator[None]:
    """Fails the test if anything in it moved torch's or numpy's global generators."""
    before, before_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    yield
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(before_numpy, np.random.get_state()[1])  # noqa: NPY002
