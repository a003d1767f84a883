"""The strategy for Avalanche: equal to the learner alone in multi-head and single-head benchmarks, with its metrics."""

import importlib.util
import warnings

import pytest
import torch
from sklearn.datasets import load_digits

import frcl
from frcl import MLP
from frcl.bench import cpu, peers
from frcl.errors import DataError, OptionError, TaskError
from frcl.experiment import runner
from frcl.experiment.config import resolve
from frcl.experiment.keeper import Observer
from torchvision_operators import declare

if importlib.util.find_spec("avalanche") is None:
    pytest.skip("Avalanche is not installed", allow_module_level=True)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the packages that Avalanche imports
    declare()
    from avalanche.benchmarks import tensors_benchmark
    from avalanche.core import SupervisedPlugin
    from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
    from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin

    from frcl.adapters.avalanche import FRCLStrategy

pytestmark = pytest.mark.filterwarnings("ignore:No loggers", "ignore::DeprecationWarning")
PIXELS, DIGITS = (torch.tensor(part) for part in load_digits(return_X_y=True))


def digit_tasks(pairs=((0, 1), (2, 3), (4, 5))):
    x = (PIXELS / 16).float()
    rows = [torch.isin(DIGITS, torch.tensor(pair)).nonzero()[:, 0] for pair in pairs]
    return [(x[own[60:]], DIGITS[own[60:]]) for own in rows], [(x[own[:60]], DIGITS[own[:60]]) for own in rows]


TRAIN, TEST = digit_tasks()


def make(kind=frcl.FRCL, **changes):
    return kind(MLP(64, (32, 16), seed=1), points=12, steps=150, lr=3e-3, search_steps=20, **changes)


def run(labels, learner=None, **options):
    """A strategy trained on all experiences, and its metrics after each."""
    benchmark = tensors_benchmark(train_tensors=TRAIN, test_tensors=TEST, task_labels=labels)
    metrics = EvaluationPlugin(accuracy_metrics(epoch=True, experience=True), loss_metrics(experience=True), loggers=[])
    strategy = FRCLStrategy(learner=learner or make(), evaluator=metrics, **options)
    found = []
    for experience in benchmark.train_stream:
        trained = strategy.train(experience)
        found.append({**trained, **strategy.eval(benchmark.test_stream)})
    return strategy, found


def accuracies(found, name="Top1_Acc_Exp"):
    return [value for key, value in sorted(found.items()) if key.startswith(name)]


def alone(learner=None):
    learner = learner or make()
    for x, y in TRAIN:
        learner.fit(x, y)
    return learner


@pytest.mark.parametrize("kind", [frcl.FRCL, frcl.FRCLPlus])
def test_multi_head_is_the_learner_alone(kind):
    _, found = run([0, 1, 2], make(kind))
    learner = alone(make(kind))
    each = [learner.predict(x, task=k) for k, (x, _) in enumerate(TEST)]
    own = [float((p.labels == y).double().mean()) for p, (_, y) in zip(each, TEST, strict=True)]
    assert accuracies(found[-1]) == pytest.approx(own, abs=1e-12)
    assert min(own) > 0.9
    losses = [-float(p.log_predictive(y).mean()) for p, (_, y) in zip(each, TEST, strict=True)]
    assert accuracies(found[-1], "Loss_Exp") == pytest.approx(losses, rel=1e-4)


@pytest.mark.parametrize("kind", [frcl.FRCL, frcl.FRCLPlus])
def test_single_head_infers_the_task(kind):
    _, found = run([0, 0, 0], make(kind))
    learner = alone(make(kind))
    own = [float((learner.predict(x).labels == y).double().mean()) for x, y in TEST]
    assert accuracies(found[-1]) == pytest.approx(own, abs=1e-12)
    assert sum(own) / 3 > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("method", ["frcl", "frcl-plus"])
def test_it_measures_what_our_own_runner_measures(method, tmp_path):
    """The accuracy matrices of `frcl run split-digits`, with the task and without, from Avalanche's loop: equal."""
    layer = {"method": method, "seeds": [0], "learner": {"steps": 100, "search_steps": 20, "points": 10}}
    config = resolve("split-digits", layer)
    result = runner.run(config, tmp_path / "run", Observer())
    benchmark = runner.benchmark_of(config, 0)
    tasks = [benchmark.task(k) for k in range(len(benchmark))]
    data = [[(one.x, one.y) for one in splits] for splits in zip(*((t.train, t.test) for t in tasks), strict=True)]
    for labels, expected in ((range(len(tasks)), result.accuracy[0]), ([0] * len(tasks), result.agnostic[0])):
        stream = tensors_benchmark(train_tensors=data[0], test_tensors=data[1], task_labels=list(labels))
        metrics = EvaluationPlugin(accuracy_metrics(experience=True), loggers=[])
        strategy = FRCLStrategy(learner=runner.new_learner(config, benchmark, 0), evaluator=metrics)
        for row, experience in enumerate(stream.train_stream):
            strategy.train(experience)
            found = accuracies(strategy.eval(stream.test_stream))
            assert found[: row + 1] == pytest.approx(list(expected[row, : row + 1]), abs=1e-12)


def test_tasks_that_share_a_label_are_a_mixture_of_their_own():
    """p(y | x, label) = Σ p(k | x) p(y | x, k) / Σ p(k | x) over the tasks with the label."""
    strategy, _ = run([0, 1, 1])
    learner, x = alone(), TEST[1][0]
    found = strategy.model(x, torch.ones(len(x), dtype=torch.long)).exp()
    weights = learner.predict(x).task_probs[:, 1:]
    weights = weights / weights.sum(1, keepdim=True)
    expected = torch.zeros(len(x), 6)
    for k in (1, 2):
        expected[:, [2 * k, 2 * k + 1]] = weights[:, k - 1, None] * learner.predict(x, task=k).probs
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_inputs_of_several_labels_are_each_predicted_in_their_task():
    strategy, _ = run([0, 1, 2])
    x = torch.cat([part[:5] for part, _ in TEST])
    labels = torch.arange(3).repeat_interleave(5)
    order = torch.randperm(15, generator=torch.Generator().manual_seed(0))
    whole = strategy.model(x, labels)
    torch.testing.assert_close(strategy.model(x[order], labels[order]), whole[order])
    apart = torch.cat([strategy.model(x[labels == k], labels[labels == k]) for k in range(3)])
    torch.testing.assert_close(whole, apart)


def test_before_and_beyond_what_was_learned():
    """Without any task all classes are equal; a task label that was not learned is as none."""
    strategy, found = run([0, 1, 2], make())
    fresh = FRCLStrategy(learner=make(), evaluator=EvaluationPlugin(loggers=[]))
    assert fresh.model(TEST[0][0], torch.zeros(60)).unique().tolist() == [0.0]
    assert accuracies(found[0])[1:] == [0.0, 0.0]  # of the digits 2 to 5, when only 0 and 1 are known
    x = TEST[0][0]
    torch.testing.assert_close(strategy.model(x, torch.full((60,), 9)), strategy.model(x))


def test_training_metrics_are_those_of_the_learned_task():
    _, found = run([0, 1, 2])
    learner = make()
    learner.fit(*TRAIN[0])
    own = float((learner.predict(TRAIN[0][0], task=0).labels == TRAIN[0][1]).double().mean())
    assert accuracies(found[0], "Top1_Acc_Epoch") == pytest.approx([own])


def test_it_goes_on_with_a_saved_learner(tmp_path):
    strategy, _ = run([0, 1, 2])
    strategy.learner.save(tmp_path / "model.frcl")
    learner = frcl.load(tmp_path / "model.frcl", MLP(64, (32, 16)))
    with pytest.raises(OptionError, match="knows 3 tasks; task_labels has 0"):
        FRCLStrategy(learner=learner)
    again = FRCLStrategy(learner=learner, task_labels=[0, 1, 2], evaluator=EvaluationPlugin(loggers=[]))
    x = TEST[1][0]
    labels = torch.ones(len(x))
    assert torch.equal(again.model(x, labels), strategy.model(x, labels)[:, :4])  # it has met no label above 3 here


def test_an_ensemble_is_a_strategy_too():
    strategy, found = run([0, 1, 2], frcl.Ensemble(MLP(64, (16,)), 2, points=12, steps=60, lr=3e-3, search_steps=5))
    assert len(strategy.model.nets) == 2
    assert min(accuracies(found[-1])) > 0.8


def test_reading_the_data_leaves_the_global_random_state(global_random_state_untouched):
    benchmark = tensors_benchmark(train_tensors=TRAIN[:1], test_tensors=TEST[:1], task_labels=[0])
    FRCLStrategy(learner=make(), evaluator=EvaluationPlugin(loggers=[])).train(benchmark.train_stream[0])


class Clips(SupervisedPlugin):
    def after_backward(self, strategy, *args, **kwargs):
        pass


class Counts(SupervisedPlugin):
    def __init__(self):
        super().__init__()
        self.rows = 0

    def after_training_iteration(self, strategy, *args, **kwargs):
        self.rows += len(strategy.mb_output)


def test_plugins_without_effect_are_refused():
    with pytest.raises(OptionError, match=r"Clips acts on gradients \(after_backward\)"):
        FRCLStrategy(learner=make(), plugins=[Clips()])
    counts = Counts()
    run([0, 1, 2], plugins=[counts])
    assert counts.rows == sum(len(y) for _, y in TRAIN)
    with pytest.raises(OptionError, match="replaced the data loader"):
        run([0, 1, 2], plugins=[ReplayPlugin(mem_size=20)])


def test_data_that_are_no_task_are_refused():
    numbers = [(x, y.float()) for x, y in TRAIN]
    benchmark = tensors_benchmark(train_tensors=TRAIN, test_tensors=TEST, task_labels=[0, 1, 2])
    strategy = FRCLStrategy(learner=make(), evaluator=EvaluationPlugin(loggers=[]))
    experience = benchmark.train_stream[0]
    strategy.experience = experience
    for data, error in ((numbers[0], DataError), (TRAIN[0], TaskError)):
        labels = torch.zeros(len(data[1])) if error is DataError else torch.arange(len(data[1]))
        strategy.dataloader = strategy._own = [(*data, labels)]
        with pytest.raises(error, match=r"classification|several task labels"):
            strategy.training_epoch()
    assert strategy.learner.tasks == ()


# -- the clock ------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", peers.CASES, ids=lambda case: case.goal.name)
def test_steps_of_both_are_timed(case):
    size = cpu.Sizes(inputs=5, widths=(4, 3), classes=3, examples=60, batch=6, steps=3, threads=1)
    found = case.measure(size, 2, lambda: None)
    assert [len(found.seconds[side]) for side in ("ours", "other")] == [2, 2]
    assert min(*found.seconds["ours"], *found.seconds["other"]) > 0
