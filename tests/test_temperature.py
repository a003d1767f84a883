"""Temperature in a learner: what is held out is not learned from, and serves to choose it."""

import copy
import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

import frcl
from frcl import FRCL, MLP, Ensemble, OptionError
from frcl.learners.lockstep import finish
from frcl.likelihoods import best_temperature
from streams import blobs, same_tensors

X, Y = blobs((0, 1, 2), 200, 3)
OPTIONS = {"points": 6, "steps": 20, "batch_size": 16, "search_steps": 20}


def learner(kind: type = FRCL, **options) -> FRCL | Ensemble:
    return kind(MLP(4, (8, 5), seed=1), **{**OPTIONS, "held_out": 0.1, **options})


def rows_of(part: Tensor, whole: Tensor) -> set[int]:
    return {int((whole == row).all(1).nonzero()[0, 0]) for row in part}


def test_what_is_held_out_is_neither_learned_from_nor_kept():
    one = learner()
    work = one.learn(X, Y)
    program = next(work)
    learned = rows_of(program.x, X)
    assert len(learned) == len(program.x) == len(program.y) == 180
    for row, label in zip(program.x, program.y, strict=True):
        assert int(Y[(row == X).all(1).nonzero()[0, 0]]) == int(label)
    work.close()
    for selection in ("trace", "random", "predictive"):
        summary = learner(selection=selection, steps=2).fit(X, Y)
        assert rows_of(summary.Z, X) <= learned  # the same rows are held out, whatever the options


def test_another_seed_and_another_task_hold_out_other_examples():
    def held(seed: int, task: int) -> set[int]:
        one = learner(seed=seed, steps=1)
        for _ in range(task):
            one.fit(X, Y)
        work = one.learn(X, Y)
        left = set(range(len(X))) - rows_of(next(work).x, X)
        work.close()
        return left

    assert held(0, 0) == held(0, 0)
    assert len({frozenset(held(seed, task)) for seed, task in ((0, 0), (1, 0), (0, 1))}) == 3


@pytest.mark.parametrize("prediction", ["summary", "head"])
def test_probabilities_are_those_of_tempered_functions(prediction):
    one = learner(prediction=prediction)
    one.fit(X, Y)
    temperature = one.tasks[0].temperature
    assert temperature is not None
    assert float(temperature) != pytest.approx(1.0, abs=1e-3)
    p = one.predict(X, task=0)
    draws = one._model.predictive_draws(one.likelihood(0))
    f = (p.mean + (p.variance + 1e-12).sqrt() * draws) / temperature
    torch.testing.assert_close(p.probs, f.softmax(-1).mean(0))
    torch.testing.assert_close(one.mean(X, task=0), p.mean)  # the functions themselves are as they are


def test_temperature_was_chosen_on_what_was_held_out():
    one = learner(steps=60)
    work = one.learn(X, Y)
    learned = rows_of(next(work).x, X)
    work.close()
    one = learner(steps=60)
    one.fit(X, Y)
    held = torch.tensor(sorted(set(range(len(X))) - learned))
    p = one.predict(X[held], task=0)
    draws = one._model.predictive_draws(one.likelihood(0))
    expected = best_temperature(one.likelihood(0), p.mean, p.variance, Y[held], draws, {})
    torch.testing.assert_close(one.tasks[0].temperature, expected, rtol=1e-3, atol=0)


def test_a_network_that_learned_noise_is_less_sure(generator):
    x = torch.randn(1200, 4, generator=generator)
    y = torch.where(torch.rand(1200, generator=generator) < 0.3, torch.randint(3, (1200,), generator=generator), 0)
    y = torch.where(y == 0, x[:, :3].argmax(1), y)
    one = FRCL(MLP(4, (64, 64)), points=60, steps=1200, lr=5e-3, batch_size=64, held_out=0.25)
    one.fit(x[:600], y[:600])
    p = one.predict(x[600:], task=0)
    draws = one._model.predictive_draws(one.likelihood(0))
    without = one.likelihood(0).probabilities(p.mean, p.variance, draws)

    def nll(probs: Tensor) -> float:
        return float(-probs.gather(1, y[600:, None]).log().mean())

    assert float(one.tasks[0].temperature) > 1.2
    assert nll(p.probs) < nll(without) - 0.02


def test_a_temperature_is_saved_and_counted(tmp_path):
    one = learner()
    one.fit(X, Y)
    one.save(tmp_path / "one.frcl")
    again = frcl.load(tmp_path / "one.frcl", MLP(4, (8, 5)))
    torch.testing.assert_close(again.predict(X, task=0).probs, one.predict(X, task=0).probs, rtol=0, atol=0)
    without = learner(held_out=0.0)
    without.fit(X, Y)
    assert one.memory_bytes() == without.memory_bytes() + 4
    assert without.tasks[0].temperature is None


def test_an_interrupted_task_holds_out_the_same_examples():
    whole, part = learner(), learner()
    whole.fit(X, Y)

    class Stop(Exception):
        pass

    def stop(log) -> None:
        if log.step == 7:
            raise Stop

    with pytest.raises(Stop):
        part.fit(X, Y, on_step=stop)
    other = learner()
    other.load_state_dict(copy.deepcopy(part.state_dict()))
    other.fit(X, Y)
    assert same_tensors(other.state_dict()["tensors"], whole.state_dict()["tensors"])


def test_what_cannot_be_held_out_is_refused():
    with pytest.raises(OptionError, match="held_out"):
        learner(held_out=0.6)
    with pytest.raises(OptionError, match="held_out"):
        learner(held_out=-0.1)
    with pytest.raises(OptionError, match="held_out"):
        learner(held_out=math.nan)
    with pytest.raises(OptionError, match="regression"):
        learner().fit(X, X[:, :1].sin())
    with pytest.raises(frcl.DataError, match="200 examples less 20 held out are fewer than the 190"):
        learner(points=190).fit(X, Y)
    with pytest.raises(frcl.DataError, match="200 examples are fewer than the 201"):
        learner(points=201).fit(X, Y)


def test_every_class_keeps_examples_to_learn_from(generator):
    y = torch.arange(80) % 20  # four of each
    x = torch.randn(80, 4, generator=generator)
    for seed in range(5):
        one = FRCL(MLP(4, (8, 5)), points_per_class=1, start="balanced", steps=1, held_out=0.5, seed=seed)
        work = one.learn(x, y)
        learned = next(work)
        assert set(learned.y.tolist()) == set(range(20))
        assert 40 <= len(learned.y) <= 45
        work.close()


def test_what_fails_or_is_interrupted_at_the_end_leaves_the_task_open(monkeypatch):
    one, whole = learner(), learner()
    whole.fit(X, Y)

    def stop(*args) -> Tensor:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("frcl.learners.predict.best_temperature", stop)
        with pytest.raises(KeyboardInterrupt):
            one.fit(X, Y)
    assert (len(one.tasks), one.step) == (0, 20)
    one.fit(X, Y)
    assert (len(one.tasks), one.step) == (1, 0)
    assert one.tasks[0].temperature is not None
    assert same_tensors(one.net.state_dict(), whole.net.state_dict())


def test_functions_that_are_not_finite_are_refused():
    x = X.clone()
    work = learner().learn(X, Y)
    learned = rows_of(next(work).x, X)
    work.close()
    x[min(set(range(len(X))) - learned)] = 3e38
    one = learner()
    with pytest.raises(frcl.NumericalError, match="too large to predict from"):
        one.fit(x, Y)
    assert not one.tasks


@pytest.mark.parametrize("options", [
    {"inference": "function"}, {"inference": "function", "learn_inputs": True}, {"likelihood": "robustmax"},
    {"kind": Ensemble, "members": 2},
])  # fmt: skip
def test_all_kinds_of_learners_may_hold_examples_out(options):
    one = learner(**options)
    one.fit(X, Y)
    members = one.members if "members" in options else [one]
    for member in members:
        temperature = float(member.tasks[0].temperature)
        assert (temperature == pytest.approx(1.0, abs=1e-3)) == ("likelihood" in options)
    p = one.predict(X, task=0)
    torch.testing.assert_close(p.probs.sum(1), torch.ones(len(X)))


def test_two_classes_and_double_precision():
    x, y = (part[:100] for part in blobs((4, 7), 200, 3))
    one = FRCL(MLP(4, (8, 5)).double(), **OPTIONS, held_out=0.2)
    one.fit(x.double(), y)
    temperature = one.tasks[0].temperature
    assert temperature.dtype == torch.float64
    p = one.predict(x.double(), task=0)
    f = torch.linspace(-40, 40, 20_001, dtype=torch.float64)
    density = Normal(p.mean / temperature, p.variance.sqrt() / temperature).log_prob(f).exp() * (f[1] - f[0])
    torch.testing.assert_close(p.probs[:, 1], (density * f.sigmoid()).sum(1), atol=1e-4, rtol=0)


def test_learners_together_hold_out_what_each_holds_out_alone():
    together_, alone = [learner(seed=seed) for seed in (0, 1)], [learner(seed=seed) for seed in (0, 1)]
    finish([one.learn(X, Y) for one in together_])
    for one, other in zip(together_, alone, strict=True):
        other.fit(X, Y)
        torch.testing.assert_close(one.tasks[0].Z, other.tasks[0].Z)
        torch.testing.assert_close(one.tasks[0].temperature, other.tasks[0].temperature, rtol=1e-3, atol=0)
