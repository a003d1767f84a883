"""The scale of the features: found on the first data, kept, saved, and without a trace of what failed."""

import copy
import math

import pytest
import torch
from torch import nn

import frcl
from frcl import FRCL, MLP, BoundaryDetector, CheckpointError, NetworkError
from streams import blobs


def test_the_scale_is_found_on_the_first_data_and_stays(tmp_path):
    """1/rms of the network's outputs on the data of the first task, before training; kept for every later one."""
    tasks = [blobs((0, 1, 2), 60, 1), blobs((0, 1), 60, 2)]
    net = MLP(4, (6,), seed=1)
    with torch.no_grad():
        net.layers[-1].weight.mul_(5.0)
        expected = float(net(tasks[0][0]).square().mean() ** -0.5)
    learner = FRCL(net, points=5, steps=5)
    assert learner.feature_scale == 1.0
    for x, y in tasks:
        learner.fit(x, y)
        assert learner.feature_scale == pytest.approx(expected, rel=1e-5)
    learner.save(tmp_path / "a.frcl")
    again = frcl.load(tmp_path / "a.frcl", net)
    assert again.feature_scale == learner.feature_scale
    for one in (again, copy.deepcopy(learner)):
        for task, (x, _) in enumerate(tasks):
            torch.testing.assert_close(one.predict(x, task).mean, learner.predict(x, task).mean)
            torch.testing.assert_close(one.mean(x, task), learner.mean(x, task))
    state = learner.state_dict()
    state["meta"]["feature_scale"] = 0.0
    with pytest.raises(CheckpointError, match="scale of the features"):
        learner.load_state_dict(state)
    assert learner.feature_scale == pytest.approx(expected, rel=1e-5)


def test_a_stream_takes_its_first_minibatch_and_a_dropped_task_leaves_no_scale():
    (x, y), net = blobs((0, 1, 2), 64, 1), MLP(4, (6,), seed=1)
    learner = FRCL(net, points=5, labels=(0, 1, 2), detector=BoundaryDetector(5.0))
    learner.observe(1000.0 * x, y)
    learner.abandon_task()
    assert learner.feature_scale == 1.0
    with torch.no_grad():
        expected = 3.0 * float(learner.net(x[:16]).square().mean() ** -0.5)
    learner.observe(x[:16], y[:16])
    learner.observe(x[16:], y[16:])
    assert learner.feature_scale == pytest.approx(expected, rel=1e-5)


def test_a_first_task_that_fails_leaves_no_scale():
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 4)

        def forward(self, x):
            return self.table(x[:, 0])

    x, y = torch.arange(40)[:, None] % 10, torch.arange(40) % 2
    learner, wrong = FRCL(Words(), points=5, steps=2), x.clone()
    wrong[30] = 10
    before = learner.state_dict()
    with pytest.raises(NetworkError, match="failed on these inputs"):
        learner.fit(wrong, y)
    assert learner.feature_scale == 1.0
    assert before["meta"] == learner.state_dict()["meta"]
    learner.fit(x, y)
    assert math.isfinite(learner.feature_scale)
