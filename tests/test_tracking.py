"""Heads that follow a drift beside a learner, and the evaluation that goes on after an interruption."""

import json
import math
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import frcl
import frcl.experiment.tracking
from frcl import BoundaryDetector
from frcl.cli import app
from frcl.errors import CheckpointError
from frcl.experiment.prequential import Evaluation, RunningScaler, evaluate
from frcl.experiment.tracking import KEPT, Tracker, learned, predictive, relaxed

F64 = torch.float64


def problem(n=40, K=3, C=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    Phi = torch.randn(n, K, generator=generator, dtype=F64)
    return Phi, torch.nn.functional.one_hot((Phi[:, 0] > 0).long(), C).double()


def test_a_head_learns_the_mode_and_the_curvature_there(monkeypatch):
    """Against autograd: at m the gradient of −log p(t | w) − log N(w; m0, Λ0⁻¹) vanishes, and Λ is its Hessian."""
    Phi, t = problem()
    m, L = 0.1 * torch.ones(1, 2, 3, dtype=F64), 2.0 * torch.eye(3, dtype=F64).expand(1, 2, 3, 3)
    monkeypatch.setattr(frcl.experiment.tracking, "NEWTON", 30)
    mean, precision = learned(m, L, Phi, t)

    def energy(w: torch.Tensor) -> torch.Tensor:
        data = torch.nn.functional.binary_cross_entropy_with_logits(Phi @ w.mT, t, reduction="sum")
        return data + (w - m[0]).square().sum()  # ½ (w − m0)ᵀ 2 (w − m0)

    gradient = torch.autograd.functional.jacobian(energy, mean[0])
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-9, rtol=0)
    hessian = torch.autograd.functional.hessian(energy, mean[0])
    for c in range(2):
        torch.testing.assert_close(precision[0, c], hessian[c, :, c])


def test_precisions_relax_to_the_prior_at_the_rate_of_each_head():
    L = 5.0 * torch.eye(2, dtype=F64).expand(2, 1, 2, 2)
    found = relaxed(L, torch.tensor([0.5, 0.9], dtype=F64))
    torch.testing.assert_close(found[:, 0].diagonal(dim1=1, dim2=2)[:, 0], torch.tensor([3.0, 4.6], dtype=F64))


def test_probabilities_are_logistic_integrals():
    """Against a sum over samples of f; the formula is good to about a hundredth."""
    Phi, t = problem()
    mean, precision = learned(
        torch.zeros(1, 2, 3, dtype=F64), torch.eye(3, dtype=F64).expand(1, 2, 3, 3), Phi[:8], t[:8]
    )

    chol = torch.linalg.cholesky(torch.linalg.inv(precision[0]))
    draws = (
        mean[0] + (chol @ torch.randn(20_000, 2, 3, 1, generator=torch.Generator().manual_seed(1), dtype=F64))[..., 0]
    )
    s = torch.sigmoid(torch.einsum("nk,sck->snc", Phi, draws)).mean(0)
    torch.testing.assert_close(predictive(mean, precision, Phi)[0], s / s.sum(1, keepdim=True), atol=0.02, rtol=0)


def test_weights_follow_the_evidence():
    """The log-densities of the minibatch, and a part of the evidence before, decide whose prediction counts."""
    tracker, rows = Tracker(), torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    y = (rows[:, 0] > 0).long().tolist()
    own = torch.full((30, 2), 0.5)
    tracker.learn(rows, y, None, ())
    each = tracker._each(tracker._features(rows), own, [0, 1])
    tracker.learn(rows, y, own, [0, 1])
    first = tracker.state.evidence
    torch.testing.assert_close(first[0], torch.tensor(30 * math.log(0.5), dtype=F64))
    torch.testing.assert_close(first, each[:, range(30), y].log().sum(1))
    each = tracker._each(tracker._features(rows), own, [0, 1])
    expected = (torch.softmax(first, 0)[:, None, None] * each).sum(0)
    torch.testing.assert_close(tracker.predict(rows, own, [0, 1]), expected)
    tracker.learn(rows, y, own, [0, 1])
    torch.testing.assert_close(tracker.state.evidence, KEPT * first + each[:, range(30), y].log().sum(1))


def test_labels_that_appear_get_heads_and_unknown_ones_the_prediction_of_the_learner():
    tracker, rows = Tracker(), torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    tracker.learn(rows, ["a"] * 20, None, ())
    before = tracker.state.heads[0].mean.clone()
    own = torch.tensor([[0.2, 0.3, 0.5]]).expand(20, 3)
    found = tracker.predict(rows, own, ["a", "b", "c"])
    torch.testing.assert_close(found.sum(1), torch.ones(20, dtype=F64))
    torch.testing.assert_close(found[:, 1] / found[:, 2], torch.full((20,), 0.6, dtype=F64), rtol=1e-6, atol=0)
    tracker.learn(rows, ["a", "b"] * 10, own[:, :2], ["a", "b"])
    assert tracker.state.labels == ["a", "b"]
    assert tracker.state.heads[0].mean.shape == (4, 2, before.shape[2])


def drifting(minibatches=120, seed=0):
    """Labels whose meaning turns slowly: what was learned long ago misleads."""
    generator, stream = torch.Generator().manual_seed(seed), []
    for t in range(minibatches):
        x = torch.randn(32, 2, generator=generator)
        angle = 3.0 * math.pi * t / minibatches
        stream.append((x, (math.cos(angle) * x[:, 0] + math.sin(angle) * x[:, 1] > 0).long()))
    return stream


def make(detector=True, seed=0):
    detector = BoundaryDetector() if detector else None
    return frcl.FRCL(frcl.MLP(2, (16,), seed=seed), 10, seed=seed, detector=detector)


def test_a_drift_is_followed_and_nothing_is_lost_without_one():
    stream = drifting()
    alone, both = evaluate(make(detector=False), stream), evaluate(make(detector=False), stream, tracker=Tracker())
    assert both.accuracy > alone.accuracy + 0.1
    assert both.accuracy > 0.9
    still = [(x, (x[:, 0] > 0).long()) for x, _ in stream]
    alone, both = evaluate(make(detector=False), still), evaluate(make(detector=False), still, tracker=Tracker())
    assert both.accuracy > alone.accuracy - 0.005


def test_an_evaluation_goes_on_exactly(tmp_path):
    stream = drifting(60)
    whole = Evaluation(make(), RunningScaler(200), Tracker(), keep_scores=True)
    for x, y in stream:
        whole.step(x, y)
    first = Evaluation(make(), RunningScaler(200), Tracker(), keep_scores=True)
    for x, y in stream[:25]:
        first.step(x, y)
    first.save(tmp_path / "stream.frcl")
    again = Evaluation(make(seed=0), RunningScaler(200), Tracker(), keep_scores=True)
    again.load(tmp_path / "stream.frcl")
    assert again.steps == 25
    for x, y in stream[25:]:
        again.step(x, y)
    assert again.result() == whole.result()
    torch.testing.assert_close(again.tracker.state.evidence, whole.tracker.state.evidence, rtol=0, atol=0)
    with pytest.raises(CheckpointError, match="another scaler or tracker"):
        Evaluation(make(), RunningScaler()).load(tmp_path / "stream.frcl")
    whole.learner.save(tmp_path / "model.frcl")
    with pytest.raises(CheckpointError, match="not the checkpoint of a stream"):
        again.load(tmp_path / "model.frcl")


def test_the_command_goes_on_after_a_kill(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules["frcl.cli.stream"], "SECONDS", 0.0)
    rows = [[*x.tolist(), int(label)] for xs, y in drifting(40) for x, label in zip(xs, y, strict=True)]
    (tmp_path / "own.csv").write_text("\n".join(",".join(map(str, row)) for row in [["a", "b", "y"], *rows]))
    given = ["stream", "own.csv", "--target", "y", "--points", "10", "--width", "16", "--steps", "1"]
    assert CliRunner().invoke(app, [*given, "--out", "whole"]).exit_code == 0
    step, taken = Evaluation.step, [0]

    def killed(self, x, y):
        taken[0] += 1
        if taken[0] == 20:
            raise KeyboardInterrupt
        return step(self, x, y)

    monkeypatch.setattr(Evaluation, "step", killed)
    assert CliRunner().invoke(app, [*given, "--out", "part"]).exit_code != 0
    monkeypatch.setattr(Evaluation, "step", step)
    other = CliRunner().invoke(app, [*given, "--out", "part", "--seed", "1"])
    assert "another seed" in str(other.exception)
    done = CliRunner().invoke(app, [*given, "--out", "part"])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "part/stream.json").read_text()) == json.loads(
        (tmp_path / "whole/stream.json").read_text()
    )
    assert not (tmp_path / "part/stream.frcl").exists()


def test_detectors_of_river_on_the_same_scores():
    pytest.importorskip("river")
    from frcl.adapters.river import NAMES, found_in

    rng = np.random.default_rng(0)
    scores = [None, *rng.standard_normal(300), *(5 + rng.standard_normal(300))]
    for name in NAMES:
        assert any(301 <= t < 400 for t in found_in(name, scores)), name
