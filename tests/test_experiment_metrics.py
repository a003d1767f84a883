"""Metrics against their definitions, scikit-learn and SciPy, on matrices that are not symmetric."""

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from frcl.experiment.keeper import _curve
from frcl.experiment.metrics import (
    Scores,
    accuracy_after_learning,
    accuracy_matrix,
    auroc,
    average_accuracy,
    average_so_far,
    backward_transfer,
    brier,
    calibration,
    declared_switches,
    forgetting,
    forgetting_by_task,
    forward_transfer,
    judge,
    negative_log_likelihood,
    over_seeds,
    score_boundaries,
)
from frcl.learners.types import Prediction


@pytest.fixture
def matrix() -> np.ndarray:
    """Rows: after learning task 0, 1, 2. Columns: on task 0, 1, 2."""
    return accuracy_matrix([[0.9], [0.7, 0.8], [0.5, 0.85, 0.95]])


def test_matrix_metrics(matrix):
    assert matrix[1, 0] == 0.7
    assert average_accuracy(matrix) == pytest.approx((0.5 + 0.85 + 0.95) / 3)
    assert accuracy_after_learning(matrix) == pytest.approx((0.9 + 0.8 + 0.95) / 3)
    assert backward_transfer(matrix) == pytest.approx(((0.5 - 0.9) + (0.85 - 0.8)) / 2)
    assert forgetting(matrix) == pytest.approx(((0.9 - 0.5) + (0.8 - 0.85)) / 2)
    alone = np.array([0.1, 0.75, 0.9])
    assert forward_transfer(matrix, alone) == pytest.approx(((0.8 - 0.75) + (0.95 - 0.9)) / 2)
    np.testing.assert_array_equal(matrix, [[0.9, np.nan, np.nan], [0.7, 0.8, np.nan], [0.5, 0.85, 0.95]])


def test_metrics_of_several_seeds_are_those_of_each(matrix):
    other = accuracy_matrix([[0.6], [0.9, 0.5], [0.7, 0.5, 0.5]])
    both = np.stack([matrix, other])
    np.testing.assert_allclose(forgetting_by_task(both), [[0.9 - 0.5, 0.8 - 0.85], [0.9 - 0.7, 0.0]])
    for function in (average_accuracy, accuracy_after_learning, backward_transfer, forgetting, average_so_far):
        np.testing.assert_array_equal(function(both), [function(matrix), function(other)])


def test_forgetting_looks_at_the_best_there_was():
    matrix = accuracy_matrix([[0.6], [0.9, 0.5], [0.7, 0.5, 0.5]])
    assert forgetting(matrix) == pytest.approx(((0.9 - 0.7) + 0.0) / 2)
    assert backward_transfer(matrix) == pytest.approx(((0.7 - 0.6) + 0.0) / 2)


def test_one_task_has_no_transfer_and_wrong_rows_are_refused():
    matrix = accuracy_matrix([[0.4]])
    assert average_accuracy(matrix) == 0.4
    assert np.isnan([forgetting(matrix), backward_transfer(matrix), forward_transfer(matrix, np.array([0.3]))]).all()
    with pytest.raises(ValueError, match="row 1 of 2 needs 2 entries, not 3"):
        accuracy_matrix([[0.4], [0.4, 0.4, 0.4]])
    with pytest.raises(ValueError, match="needs 1 entries, not 2"):
        accuracy_matrix([[0.1, 0.2]])


def test_nll_and_brier_equal_scikit_learn(generator):
    probs = torch.softmax(2 * torch.randn(50, 4, generator=generator, dtype=torch.float64), 1)
    y = torch.randint(4, (50,), generator=generator)
    assert negative_log_likelihood(probs, y) == pytest.approx(log_loss(y, probs, labels=range(4)))
    two = torch.stack([1 - probs[:, 0], probs[:, 0]], 1)
    binary = (y == 0).long()
    assert brier(two, binary) == pytest.approx(2 * brier_score_loss(binary, two[:, 1]))
    certain = torch.eye(4, dtype=torch.float64)[y]
    assert (brier(certain, y), negative_log_likelihood(certain, y)) == (0.0, 0.0)
    assert brier(certain.roll(1, 1), y) == 2.0
    assert negative_log_likelihood(certain.roll(1, 1), y) < 100


def test_calibration_by_hand():
    probs = torch.tensor([[0.95, 0.05], [0.85, 0.15], [0.30, 0.70], [0.65, 0.35]], dtype=torch.float64)
    y = torch.tensor([0, 1, 1, 0])
    bins = calibration(probs, y)
    expected = (0.25 * abs(1 - 0.95)) + 0.25 * abs(0 - 0.85) + 0.25 * abs(1 - 0.70) + 0.25 * abs(1 - 0.65)
    assert bins.error() == pytest.approx(expected)
    twice = _curve([Scores(calibration=bins)] * 2)
    assert twice.count == (0, 0, 0, 0, 0, 0, 4, 0, 2, 2)
    assert twice.confidence[8] == pytest.approx(0.85)
    assert twice.accuracy[8] == 0.0
    assert np.isnan(twice.accuracy[0])
    assert _curve([Scores(calibration=bins), Scores()]) is None


def test_perfectly_calibrated_predictions_have_a_small_error(generator):
    confidence = 0.5 + 0.5 * torch.rand(200_000, generator=generator, dtype=torch.float64)
    y = (torch.rand(200_000, generator=generator, dtype=torch.float64) > confidence).long()
    assert calibration(torch.stack([confidence, 1 - confidence], 1), y).error() < 0.005


def test_auroc_equals_scikit_learn_with_ties(generator):
    low = torch.randint(6, (80,), generator=generator).double()
    high = torch.randint(9, (50,), generator=generator).double()
    expected = roc_auc_score([0] * 80 + [1] * 50, torch.cat([low, high]))
    assert auroc(low, high) == pytest.approx(expected)
    assert auroc(torch.zeros(3), torch.ones(2)) == 1.0


def test_intervals_equal_scipy():
    values = [0.91, 0.95, 0.90, 0.97]
    summary = over_seeds(values)
    low, high = scipy.stats.t.interval(0.95, 3, loc=scipy.stats.tmean(values), scale=scipy.stats.sem(values))
    assert summary.mean == pytest.approx(scipy.stats.tmean(values))
    assert summary.std == pytest.approx(scipy.stats.tstd(values))
    assert (summary.low, summary.high) == (pytest.approx(low), pytest.approx(high))
    one = over_seeds([0.5])
    assert (one.mean, one.std, one.low) == (0.5, None, None)
    assert over_seeds([0.5, None]) is None
    assert over_seeds([]) is None


def test_boundary_scores():
    score = score_boundaries([100, 200, 300], [103, 150, 200, 311], 5.0, tolerance=10)
    assert score.precision == pytest.approx(2 / 4)
    assert score.recall == pytest.approx(2 / 3)
    assert score.f1 == pytest.approx(2 * (0.5 * 2 / 3) / (0.5 + 2 / 3))
    assert score.delay == pytest.approx((3 + 0) / 2)
    early = score_boundaries([100], [99], 5.0, tolerance=10)
    assert (early.precision, early.recall, early.f1, early.delay) == (0.0, 0.0, 0.0, None)
    twice = score_boundaries([100], [100, 105], 5.0, tolerance=10)
    assert (twice.precision, twice.recall) == (0.5, 1.0)
    nothing = score_boundaries([], [], 5.0, tolerance=10)
    assert (nothing.precision, nothing.recall, nothing.f1) == (1.0, 1.0, 1.0)


def test_switches_declared_at_a_threshold():
    statistic = [None, 3.0, 6.0, 7.0, 1.0, 5.5, 9.0]
    assert declared_switches(statistic, 5.0, pause=0) == [2, 3, 5, 6]
    assert declared_switches(statistic, 5.0, pause=2) == [2, 5]
    assert declared_switches(statistic, 8.0, pause=2) == [6]


def test_labels_that_a_learner_has_never_seen_have_probability_zero():
    """Against the definition with columns of zeros; the label 2 lies between those that it knows."""
    probs = torch.rand(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    probs = probs / probs.sum(1, keepdim=True)
    y = torch.tensor([0, 1, 2, 5, 9] * 10)
    found = judge(Prediction(probs.log(), torch.ones(50, 3), probs, (0, 1, 5)), y)
    whole = torch.zeros(50, 10, dtype=torch.float64)
    whole[:, [0, 1, 5]] = probs
    assert found.accuracy == float((whole.argmax(1) == y).double().mean())
    assert found.nll == pytest.approx(negative_log_likelihood(whole, y))
    assert found.brier == pytest.approx(brier(whole, y))
    assert found.ece == pytest.approx(calibration(whole, y).error())
