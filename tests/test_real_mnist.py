"""FRCL on real Split-MNIST, a reduced version: two tasks, few steps."""

import os

import pytest

from frcl.data.files import MNIST
from frcl.experiment import runner
from frcl.experiment.config import resolve
from frcl.experiment.keeper import Observer

MISSING = "FRCL_DATA names no folder with the four MNIST files"


@pytest.mark.slow
@pytest.mark.real_data
@pytest.mark.skipif(
    not os.environ.get("FRCL_DATA") or any(not file.find(None).verified for file in MNIST.files), reason=MISSING
)
def test_two_tasks_of_split_mnist(tmp_path):
    layer = {"seeds": [0], "stream": {"tasks": 2}, "learner": {"steps": 200, "points": 40}}
    result = runner.run(resolve("split-mnist", layer), tmp_path / "run", Observer())
    assert result.accuracy[0, 0, 0] > 0.99
    assert result.accuracy[0, 1, 1] > 0.95
    assert result.average_accuracy.mean > 0.96
    assert result.forgetting.mean < 0.03
