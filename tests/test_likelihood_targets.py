"""Which likelihood a task gets from its targets, how they are encoded, and what is refused."""

import numpy as np
import pytest
import torch

from frcl.errors import DataError, LabelError, OptionError
from frcl.likelihoods import Bernoulli, Gaussian, Poisson, RobustMax, Softmax, check_name, likelihood_for, plain_labels

CPU, F32 = torch.device("cpu"), torch.float32
REAL = torch.linspace(0.1, 0.9, 5)
SETTINGS = {"samples": 3, "predict_samples": 5, "target_noise": 0.7, "labels": (8, 9), "outputs": 4, "steps": 7}


def test_the_likelihood_follows_the_targets():
    assert likelihood_for([4, 3, 3]) == Bernoulli((3, 4))
    assert likelihood_for([4, 3, 9], settings=SETTINGS) == Softmax((3, 4, 9), 3, 5)
    assert likelihood_for(["b", "a"]) == Bernoulli(("a", "b"))
    assert likelihood_for([True, False]) == Bernoulli((0, 1))
    assert likelihood_for(REAL[:, None].expand(5, 2), settings=SETTINGS) == Gaussian(2, 0.7)
    assert likelihood_for(torch.arange(5), "gaussian") == Gaussian(1, 0.1)
    assert likelihood_for([1, 0], "softmax") == Softmax((0, 1))
    assert likelihood_for([1, 0], "robustmax", settings=SETTINGS) == RobustMax((0, 1))
    assert likelihood_for([1, 0, 5], "poisson", settings=SETTINGS) == Poisson(1)
    assert likelihood_for([7, 7], labels=(9, 7, 8, 7)) == Softmax((7, 8, 9))


@pytest.mark.parametrize(("y", "options", "error", "message"), [
    ([1, 2], {"name": "logistic"}, OptionError, "unknown likelihood 'logistic'; choose one of auto, bernoulli"),
    ([1, 1], {}, LabelError, r"at least two classes; got \[1\]. For a stream, declare"),
    ([1, 2, 3], {"name": "bernoulli"}, OptionError, "for 2 classes; this task has 3"),
    (torch.tensor([0.0, 1.0]), {}, DataError, "2 different whole values, which look like labels"),
    (REAL, {"name": "softmax"}, LabelError, "needs integer or string labels; the targets are floats"),
    (REAL, {"labels": (0, 1)}, LabelError, "needs integer or string labels; the targets are floats"),
    (["a", "b"], {"name": "gaussian"}, DataError, "needs numbers as targets; got strings"),
    (["a", "b"], {"name": "poisson"}, DataError, "needs numbers as targets; got strings"),
    (REAL[:, None][:, :0], {}, DataError, r"shape \(5, 0\) have no outputs"),
    (torch.ones(5) + 0j, {}, DataError, "targets are complex"),
    ([[1], [2, 3]], {}, DataError, "not a regular array"),
    ([{}, {}], {}, DataError, "not supported"),
    (np.array([2**63, 1], dtype=np.uint64), {}, LabelError, "does not fit a 64-bit integer"),
])  # fmt: skip
def test_targets_without_a_likelihood_are_refused(y, options, error, message):
    with pytest.raises(error, match=message):
        likelihood_for(y, **options)


def test_names_are_checked():
    for name in ("auto", "bernoulli", "softmax", "robustmax", "gaussian", "poisson"):
        check_name(name)
    with pytest.raises(OptionError, match=r"unknown likelihood 'poison'.*poisson"):
        check_name("poison")


def test_classes_are_positions_in_the_sorted_labels(generator):
    labels = (3, 11, 40)
    values = torch.tensor(labels)[torch.randint(3, (50,), generator=generator)]
    for model in (Softmax(labels), RobustMax(labels)):
        classes = model.encode(values, CPU, F32)
        assert model.classes == labels
        assert model.functions == 3
        assert classes.tolist() == [labels.index(int(value)) for value in values]
        assert torch.equal(model.decode(classes), values)
    names = np.array(["cat", "dog", "dog", "cat"])
    model = likelihood_for(names)
    assert (model.functions, model.classes) == (1, ("cat", "dog"))
    assert model.encode(names, CPU, F32).tolist() == [0, 1, 1, 0]
    assert list(model.decode(torch.tensor([0, 1, 1, 0]))) == list(names)


@pytest.mark.parametrize(("y", "message"), [
    ([1, 5], r"label 5 was never seen in this task, which has \[1, 2\]"),
    ([1.0, 2.0], r"this task has labels \[1, 2\]; pass integers"),
    ([[1], [2]], "one per example"),
    (["a", "b"], "got values of type <U1"),
])  # fmt: skip
def test_labels_of_another_task_are_refused(y, message):
    with pytest.raises(LabelError, match=message):
        Bernoulli((1, 2)).encode(y, CPU, F32)


def test_numbers_are_floats_one_row_per_example(generator):
    y = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    model = Gaussian(2)
    assert torch.equal(model.encode(y, CPU, F32), y.float())
    assert Gaussian(1).encode(y[:, 0].numpy(), CPU, torch.float64).shape == (5, 1)
    assert (model.classes, model.functions) == (None, 2)
    with pytest.raises(DataError, match=r"must be \[N, 2\] for this task; got shape \(5, 1\)"):
        model.encode(y[:, 0], CPU, F32)
    with pytest.raises(DataError, match="targets contain values that are NaN"):
        model.encode(y * torch.nan, CPU, F32)
    with pytest.raises(DataError, match="got strings"):
        model.encode(["a"], CPU, F32)
    with pytest.raises(LabelError, match='"gaussian" has numeric targets and no labels'):
        model.decode(torch.tensor([0]))


def test_declared_labels_become_plain():
    assert plain_labels(None) is None
    assert plain_labels(torch.tensor([1, 2])) == plain_labels(np.array([1, 2])) == (1, 2)
    with pytest.raises(LabelError, match="all integers or all strings"):
        plain_labels([1, "a"])
    with pytest.raises(LabelError, match="at least two classes"):
        plain_labels(["a", "a"])


@pytest.mark.parametrize("labels", [(0, 1, 2), (0, 2, 5), (-1, 0, 1), (3, 4, 9)])
def test_classes_become_labels_again(labels):
    found = Softmax(labels).decode(torch.tensor([2, 0, 1, 1]))
    assert (found.dtype, found.tolist()) == (torch.int64, [labels[2], labels[0], labels[1], labels[1]])
