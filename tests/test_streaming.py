"""Streams without supervision: tasks that return, labels that appear, N that is not declared."""

import copy
import importlib.util
import json
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.datasets import load_digits

import frcl
from frcl import BoundaryDetector, CheckpointError, DataError, LabelError
from frcl.boundary.aftermath import Aftermath
from frcl.boundary.profile import InputTest, inverse_root, log_distance, normal_score, without_skew
from frcl.boundary.sequential import SequentialTest
from frcl.engine.train import Optimiser
from frcl.experiment.prequential import Evaluation, RunningScaler, evaluate
from frcl.learners.state import estimated_size
from frcl.learners.streaming import reopen, with_new_labels
from frcl.likelihoods import Softmax
from frcl.posterior import triangular, weight_moments
from streams import accuracy, blobs, same_tensors, small_learner


def tool(name: str):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent.parent / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def batches(labels: tuple, count: int, seed: int, size: int = 32, order: int | None = None):
    x, y = blobs(labels, count * size, seed)
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed if order is None else order))
    return [(x[part], y[part]) for part in rows.split(size)]


# -- the profile of inputs -----------------------------------------------------------------------------------------


def test_the_distance_is_hotellings_with_a_ridge():
    rng = np.random.default_rng(0)
    rows, new = rng.standard_normal((200, 5)) @ rng.standard_normal((5, 5)), rng.standard_normal((20, 5)) + 1
    covariance = np.cov(rows.T, bias=True)
    ridge = covariance + 0.2 * np.trace(covariance) / 5 * np.eye(5)
    apart = new.mean(0) - rows.mean(0)
    expected = math.log(apart @ np.linalg.solve(ridge, apart) / (5 * (1 / 20 + 1 / 200)))
    assert log_distance(new, rows.mean(0), inverse_root(covariance), 200) == pytest.approx(expected)


def test_the_normal_score_of_a_value_of_students_t():
    for dof in (3, 8, 50):
        for t in (-4.0, -1.0, 0.5, 3.0, 8.0):
            expected = -scipy.stats.norm.ppf(scipy.stats.t.sf(t, dof))
            assert normal_score(t, dof) == pytest.approx(expected, rel=0.03, abs=0.01)


def test_the_score_of_a_logarithm_of_chi_square_is_normal():
    for k in (40, 100):
        z = np.linspace(-2.0, 4.0, 13)
        found = np.log(scipy.stats.chi2.isf(scipy.stats.norm.sf(z), k))
        mean, std = scipy.special.digamma(k / 2) + math.log(2), math.sqrt(scipy.special.polygamma(1, k / 2))
        score = [without_skew((one - mean) / std, std) for one in found]
        np.testing.assert_allclose(score, z, atol=0.12)


def test_usual_distances_are_their_mean_and_variance_and_the_profile_remembers(monkeypatch):
    monkeypatch.setattr(frcl.boundary.profile, "LIMIT", math.inf)
    monkeypatch.setattr(frcl.boundary.profile, "LIMITED", 1.0)
    rng = np.random.default_rng(1)
    data = rng.standard_normal((30, 16, 6))
    test, found = InputTest(6), []
    for i, features in enumerate(data):
        if i >= 3:
            before = data[:i].reshape(-1, 6)
            root = inverse_root(np.cov(before.T, bias=True))
            found.append(log_distance(features, before.mean(0), root, len(before)))
        test.test(features)
        test.learn(features, float(i))
    assert test.usual == pytest.approx(np.mean(found))
    assert test.variance == pytest.approx(np.var(found, ddof=1))
    profile = test.profile()
    one = torch.tensor(rng.standard_normal((16, 6)))
    whole = data.reshape(-1, 6)
    l = log_distance(one.numpy(), whole.mean(0), inverse_root(np.cov(whole.T, bias=True)), len(whole))  # noqa: E741
    variance = (4 * 0.35**2 + 26 * np.var(found, ddof=1)) / 30  # 27 distances, and a prior that counts as four
    assert profile.excess(one) == pytest.approx((l - np.mean(found)) / math.sqrt(variance), rel=1e-4)
    density = np.mean(range(20))  # of the first twenty, then a moving average
    for i in range(20, 30):
        density += (i - density) / 20
    assert profile.density == pytest.approx(density)
    assert profile.excess(one + 1) > 4


@pytest.mark.parametrize("kind", ["independent", "dependent"])
def test_the_inputs_cause_no_more_false_alarms_than_promised(kind):
    alarms, total = 0, 0
    for seed in range(6):
        rng, level = np.random.default_rng(seed), np.zeros(12)
        test = InputTest(12)
        for _ in range(400):
            level = 0.8 * level + 0.2 * rng.standard_normal(12) if kind == "dependent" else level
            features = np.tanh(rng.standard_normal((32, 12)) + level)
            alarms += test.test(features) > 3.5  # log₁₀ of the run length: 3.71
            test.learn(features)
            total += 1
    assert alarms <= 3, f"of {total}; several may belong to one change by chance"


def test_distances_of_inputs_that_do_not_change_have_normal_scores():
    """The share of scores above the 1 % quantile, after the first 100 minibatches: not more, nor a fraction of it."""
    above = total = 0
    for seed in range(6):
        rng, test = np.random.default_rng(seed), InputTest(40)
        for t in range(500):
            features = np.tanh(rng.standard_normal((32, 40)))
            test.test(features)
            above, total = above + (t >= 100 and test.windows.scores[0, -1] > 2.326), total + (t >= 100)
            test.learn(features)
    assert 0.003 < above / total < 0.012


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["independent", "dependent"])
def test_a_detector_of_scores_labels_and_inputs_keeps_its_promise(kind):
    found, alarms = tool("run_length").detector_run_length(kind, 1_000, streams=200, steps=2_000)
    assert alarms > 80
    assert 800 < found < 2_000


def test_falls_that_follow_each_other_are_predicted_and_what_is_left_has_its_variance():
    rng, test, x = np.random.default_rng(2), SequentialTest(), [0.0, 0.0]
    left = []
    for _ in range(4000):
        x.append(0.5 * x[-1] + 0.2 * x[-2] + rng.standard_normal())
    x = np.array(x[500:]) / np.std(x)
    for value in x:
        alone, std = test.without_dependence(float(value))
        left.append(alone / std)
        test.falls += 1
        test.follow_dependence(float(value))
    assert np.std(left[1000:]) == pytest.approx(1.0, abs=0.05)
    assert abs(np.corrcoef(left[1000:-1], left[1001:])[0, 1]) < 0.05


def test_the_share_of_independent_falls_is_that_of_the_variance_of_a_mean():
    rng, test = np.random.default_rng(3), SequentialTest()
    test.products, test.falls = np.array([[1.0], [0.5], [0.25]]), 10**9  # an AR(1) process
    assert test.independent_share() == pytest.approx(0.5 / 1.5, rel=1e-6)
    test.products = np.array([[1.0], [0.6], [0.5]])
    one, two = test._dependence()[:, 0]
    x = np.zeros((4000, 302))
    for t in range(2, x.shape[1]):
        x[:, t] = one * x[:, t - 1] + two * x[:, t - 2] + rng.standard_normal(len(x))
    x = x[:, 102:]
    assert test.independent_share() == pytest.approx(x.var() / x.shape[1] / x.mean(1).var(), rel=0.1)


# -- what comes after a change ------------------------------------------------------------------------------------


def changing(share, seed: int, noticed: int, count: int = 20, R: int = 16) -> Aftermath:
    """What is seen after a change in which the share of the new inputs is `share(t)`, noticed at t = `noticed`."""
    rng, before = np.random.default_rng(seed), InputTest(R)
    for _ in range(60):
        before.test(given := rng.standard_normal((32, R)))
        before.learn(given)
    profile, new = before.profile(), 2 * rng.standard_normal(R)
    after = Aftermath.after(profile)
    for t in range(noticed + 1, noticed + 1 + count):
        late = rng.random(32) < share(t)
        after.learn(rng.standard_normal((32, R)) + np.where(late[:, None], new, 0.0))
    return after


@pytest.mark.parametrize(("length", "noticed"), [(0, 0), (0, 3), (10, 0), (10, 2), (60, 3), (60, 10), (120, 15)])
def test_a_change_that_goes_on_is_told_from_one_at_once(length, noticed):
    def share(t: int) -> float:
        return min((t + 1) / (length + 1), 1.0)

    found = [changing(share, seed, noticed).goes_on() for seed in range(20)]
    assert sum(found) >= 18 if length else not any(found)
    assert not changing(share, 0, noticed, 4).goes_on(), "too little was seen"


def test_inputs_that_do_not_change_do_not_go_on():
    assert not any(changing(lambda t: 0.0, seed, 0, R=64).goes_on() for seed in range(20))


def test_a_ramp_that_is_noticed_at_once_is_called_gradual_when_it_goes_on():
    detector, rng, calls = BoundaryDetector(), np.random.default_rng(0), []
    for t in range(100):
        shift = 15.0 * min(max((t - 59) / 31, 0.0), 1.0)
        decision = detector.update(torch.ones(32), features=torch.from_numpy(rng.standard_normal((32, 16)) + shift))
        calls.append((decision.change, detector.change))
    first, *others = [t for t, (change, _) in enumerate(calls) if change]
    assert (first, calls[first]) == (60, ("sharp", "sharp"))
    assert calls[first + 5][1] == "gradual"
    assert {calls[t][0] for t in others} == {"gradual"}, "what is declared while it goes on"
    again = BoundaryDetector()
    again.load_state_dict(detector.state_dict())
    assert (again.change, repr(again.state_dict())) == (detector.change, repr(detector.state_dict()))
    for wrong in ({"change": "slow"}, {"after": {"mean": torch.zeros(16)}}):
        with pytest.raises(CheckpointError):
            again.load_state_dict(detector.state_dict() | wrong)
    detector.reset()
    assert detector.change == ""


# -- tasks that return ---------------------------------------------------------------------------------------------


def digits_tasks() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16.0).float(), torch.tensor(digits.target)
    found = {}
    for name, pair in zip("ABC", ((0, 1), (2, 3), (4, 5)), strict=True):
        own = torch.isin(y, torch.tensor(pair))
        found[name] = x[own], (y[own] == pair[1]).long()
    return found


def observed(learner: frcl.FRCL, order: str, length: int = 60) -> list[frcl.StepLog]:
    tasks, generator, logs = digits_tasks(), torch.Generator().manual_seed(5), []
    for name in order:
        x, y = tasks[name]
        for _ in range(length):
            rows = torch.randint(len(x), (32,), generator=generator)
            logs.append(learner.observe(x[rows], y[rows]))
    return logs


def digits_learner(expected_run: float = 1e4, **options) -> frcl.FRCL:
    detector = BoundaryDetector(expected_run=expected_run)
    return frcl.FRCL(frcl.MLP(64, (32, 16), seed=1), 10, detector=detector, lr=3e-3, **options)


def test_tasks_that_return_are_known_again(tmp_path):
    """A, B, A, C, B: three tasks are kept, and a stream that is saved in a returned task resumes bit for bit."""
    learner = digits_learner()
    logs = observed(learner, "ABACB")
    found = {t: (log.task, log.returned) for t, log in enumerate(logs) if log.boundary}
    assert [found[t] for t in sorted(found)] == [(1, False), (0, True), (2, False), (1, True)]
    assert all(0 <= t - 60 * (i + 1) <= 2 for i, t in enumerate(sorted(found)))
    assert [logs[60 * i + 59].task for i in range(5)] == [0, 1, 0, 2, 1]
    assert len(learner.tasks) == 3
    assert learner.tasks[0].size >= 110 * 32, "examples of both stretches"
    tasks = digits_tasks()
    assert all(accuracy(learner, *tasks[name], task) > 0.9 for task, name in enumerate("ABC"))
    bytes_kept = learner.memory_bytes()
    learner.end_task()
    assert learner.memory_bytes() == bytes_kept, "nothing grows"
    assert len(learner.tasks) == 3

    first = digits_learner()
    tasks, generator = digits_tasks(), torch.Generator().manual_seed(5)
    for t in range(140):
        x, y = tasks["ABA"[t // 60]]
        rows = torch.randint(len(x), (32,), generator=generator)
        log = first.observe(x[rows], y[rows])
    assert log.task == 0
    first.save(tmp_path / "model.frcl")
    second = frcl.load(tmp_path / "model.frcl", first.net)
    assert second.state_dict()["meta"] == first.state_dict()["meta"]
    for t in range(140, 200):
        x, y = tasks["ABAC"[t // 60]]
        rows = torch.randint(len(x), (32,), generator=generator)
        assert repr(second.observe(x[rows], y[rows])) == repr(logs[t])


def test_a_task_is_known_again_where_the_boundary_is_within_a_minibatch(tmp_path):
    """Half of a minibatch is of the task before: the next one decides. A task that is new stays so."""
    tasks, learner, order = digits_tasks(), digits_learner(), torch.Generator().manual_seed(0)
    observed(learner, "AB")
    for known, name in ((True, "A"), (False, "C")):
        last, count = learner._state.number, learner._count
        ((x, y), (x2, y2)), rows = (tasks["B" if known else "A"], tasks[name]), torch.randperm(300, generator=order)
        x2, y2 = x2[rows], y2[rows]
        mixed = learner.observe(torch.cat([x[:16], x2[:16]]), torch.cat([y[:16], y2[:16]]))
        assert (mixed.boundary, mixed.returned) == (True, False)
        assert mixed.task != last
        learner.save(tmp_path / "learner.frcl")
        again = frcl.load(tmp_path / "learner.frcl")
        log, resumed = (one.observe(x2[16:48], y2[16:48]) for one in (learner, again))
        assert repr(log) == repr(resumed)
        assert (log.boundary, log.returned, log.task) == (False, known, 0 if known else count)
        assert learner._count == count + (not known)
        assert not any(one.returned for one in observed(learner, name, 20))


def test_a_head_continues_where_its_task_ended():
    """Right after a task returned its mean is that of its summary, and its points are the first of its window."""
    learner = digits_learner()
    observed(learner, "AB")
    x, _ = digits_tasks()["A"]
    before = learner.predict(x, task=0)
    learner.end_task()
    reopen(learner, 0)
    current = learner._state.current
    torch.testing.assert_close(learner.predict(x, task=0).mean, learner._predictor.mean(learner._state, 0, x))
    torch.testing.assert_close(learner.predict(x, task=0).mean, before.mean, rtol=1e-3, atol=1e-3)
    assert torch.equal(current.window.data()[0], learner.tasks[0].Z)
    assert (learner._count, learner._state.number) == (2, 0)
    learner.abandon_task()
    assert len(learner.tasks) == 2


def test_labels_that_mean_something_else_are_another_task_although_the_inputs_are_known():
    learner = digits_learner()
    tasks = digits_tasks()
    generator, logs = torch.Generator().manual_seed(5), []
    for name in ("A", "B", "swapped"):
        x, y = tasks["A" if name == "swapped" else name]
        for _ in range(60):
            rows = torch.randint(len(x), (32,), generator=generator)
            logs.append(learner.observe(x[rows], 1 - y[rows] if name == "swapped" else y[rows]))
    assert [(log.task, log.returned) for log in logs if log.boundary][:2] == [(1, False), (2, False)]


@pytest.mark.parametrize("options", [
    {"inference": "function"}, {"task_inference": "exact"}, {"current_inputs": 0.1, "curvature": 1.0},
    {"covariance": "diagonal"},
])  # fmt: skip
def test_a_task_returns_with_other_options(options):
    slow = "inference" in options  # its functions change for long, which looks like a change of the stream
    learner = digits_learner(**options, expected_run=1e8 if slow else 1e4)
    logs = observed(learner, "ABA", 60 if slow else 40)
    assert len(learner.tasks) == 2
    assert [log.returned for log in logs if log.boundary][-1:] == [True]
    assert learner.predict(digits_tasks()["A"][0]).task_probs.shape[1] == 2


def test_what_infers_the_task_of_an_input_decides_nothing_in_a_stream():
    learners = [digits_learner(task_inference=way) for way in ("auto", "summaries")]
    one, other = ([(log.task, log.returned, log.loss) for log in observed(own, "ABA", 40)] for own in learners)
    assert one == other
    learners[0].end_task()
    examples = [float(block.examples) for block in learners[0]._state.task_sums.blocks]
    assert len(examples) == 2
    assert examples[0] > examples[1] > 500, "the task that returned has those of both stretches"


def test_stored_examples_of_a_returned_task_replace_the_earlier_ones():
    learner = frcl.FRCL(
        frcl.MLP(64, (16, 8), seed=1), 10, detector=BoundaryDetector(), lr=3e-3, regularisers=[frcl.Replay(points=10)]
    )
    observed(learner, "ABAC", 40)
    (replay,) = learner.regularisers
    assert len(replay.x) == len(replay.sizes) == len(learner.tasks) == 2 + (learner._state.current.returned is not None)


def test_a_damaged_profile_or_number_is_refused():
    learner = digits_learner()
    observed(learner, "ABA", 40)
    good = learner.state_dict()
    for change in (lambda m: m["current"].update(returned=7), lambda m: m["past"][0]["profile"].update(spread=-1.0)):
        state = copy.deepcopy(good)
        change(state["meta"])
        with pytest.raises(CheckpointError):
            learner.load_state_dict(state)
    learner.load_state_dict(good)


def shifted(start: int, minibatches: int = 120) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Two blobs that a line tells apart; from `start` on other inputs move, on which the labels do not depend."""
    generator, stream = torch.Generator().manual_seed(3), []
    for t in range(minibatches):
        y = torch.randint(2, (32,), generator=generator)
        x = torch.randn(32, 4, generator=generator)
        x[:, 0] += 6.0 * y - 3.0
        x[:, 1:] += 2.5 * (t >= start)
        stream.append((x, y))
    return stream


def test_a_task_goes_on_where_inputs_change_and_labels_are_predicted_as_before():
    learner = frcl.FRCL(frcl.MLP(4, (16, 8), seed=1), 10, detector=BoundaryDetector(), lr=1e-2)
    with torch.no_grad():  # the inputs that move have no part in the features
        next(iter(learner.net.parameters()))[:, 1:] = 0.0
    for number, (x, y) in enumerate(shifted(80)):
        log = learner.observe(x, y)
        if number == 80:
            assert log.boundary
            assert log.continues
            assert log.returned
    assert len(learner.tasks) == 0
    assert learner._count == 1


def test_a_change_of_labels_and_inputs_ends_the_task():
    learner = frcl.FRCL(frcl.MLP(4, (16, 8), seed=1), 10, detector=BoundaryDetector(), lr=1e-2)
    logs = [learner.observe(x, 1 - y if t >= 80 else y) for t, (x, y) in enumerate(shifted(80))]
    (found,) = [log for log in logs if log.boundary]
    assert not found.continues
    assert learner._count == 2


def test_usual_distances_are_carried_to_the_next_task():
    """Its mean begins where that before ended and counts as 8 distances; so a test is made at the fourth minibatch."""
    rng = np.random.default_rng(0)
    first = InputTest(6)
    for features in rng.standard_normal((40, 32, 6)):
        first.test(features)
        first.learn(features)
    second = first.successor()
    assert (second.usual, second.rows) == (first.usual, 0)
    for t, features in enumerate(rng.standard_normal((4, 32, 6))):
        before, known = second.usual, second.rows
        statistic = second.test(features)
        assert math.isfinite(statistic) == (t == 3)
        if t == 3:
            l = log_distance(features, *second._moments(), known)  # noqa: E741
            assert second.usual == pytest.approx(before + (l - before) / 9)
        second.learn(features)


# -- labels that appear --------------------------------------------------------------------------------------------


def test_labels_get_a_function_when_they_come():
    """From one label to four, without a declaration; every class is learned."""
    x, y = blobs((0, 1, 2, 3), 4000, 1)
    learner = small_learner()
    seen = [(0,), (0, 3), (0, 1, 3), (0, 1, 2, 3)]
    for step in range(200):
        own = torch.isin(y, torch.tensor(seen[min(step // 20, 3)])).nonzero()[:, 0]
        rows = own[torch.randint(len(own), (32,), generator=torch.Generator().manual_seed(step))]
        learner.observe(x[rows], y[rows])
        if step in (0, 20, 40, 60):
            assert learner.likelihood(0).classes == seen[step // 20]
    assert learner.step == 200
    learner.end_task()
    assert accuracy(learner, x, y, 0) > 0.95


@pytest.mark.parametrize("covariance", ["full", "shared", "diagonal", "lowrank"])
def test_a_new_function_leaves_the_others_and_their_moments(covariance):
    x, y = blobs((1, 4, 7), 96, 1)
    learner = small_learner(covariance=covariance)
    for _ in range(3):
        learner.observe(x, y)
    before = learner.predict(x, task=0)
    old = learner._state.current
    current, encoded = with_new_labels(learner, learner._state.current, x, torch.where(y == 4, 3, y), LabelError())
    after = learner.predict(x, task=0)
    assert after.classes == (1, 3, 4, 7)
    torch.testing.assert_close(after.mean[:, [0, 2, 3]], before.mean)
    torch.testing.assert_close(after.variance[:, [0, 2, 3]], before.variance)
    assert encoded.unique().tolist() == [0, 1, 3]
    for own, moments in ((current.optimiser.exp_avg, old.optimiser.exp_avg),):
        name = "posterior/mean"
        torch.testing.assert_close(own[name][[0, 2, 3]], moments[name])
        assert not own[name][1].any()
        assert all(torch.equal(own[n], moments[n]) for n in own if n.startswith("theta"))
    assert current.optimiser.steps == 3
    assert current.window.data()[1].unique().tolist() == [0, 2, 3]


def test_one_function_of_two_classes_becomes_two_with_the_same_difference():
    x, y = blobs((0, 1), 64, 1)
    learner = small_learner()
    for _ in range(5):
        learner.observe(x, y)
    before = learner.predict(x, task=0)
    current, _ = with_new_labels(
        learner, learner._state.current, x, torch.where(torch.arange(64) < 3, 2, y), LabelError()
    )
    assert isinstance(current.likelihood, Softmax)
    Phi = learner._model.features(x)
    mean, variance = weight_moments(triangular(current.params.posterior), Phi)
    torch.testing.assert_close(mean[:, 1] - mean[:, 0], before.mean[:, 0])
    torch.testing.assert_close(variance[:, 1] + variance[:, 0], before.variance[:, 0])


def test_a_label_of_another_type_is_refused():
    x, y = blobs((0, 1), 32, 1)
    learner = small_learner()
    learner.observe(x, y)
    state = learner.state_dict()["tensors"]
    with pytest.raises(LabelError, match="values of type"):
        learner.observe(x, np.array(["a", "b"] * 16))
    assert same_tensors(state, learner.state_dict()["tensors"])


def test_a_step_that_fails_after_a_label_appeared_leaves_no_trace(monkeypatch):
    x, y = blobs((0, 1, 2), 60, 1)
    learner = small_learner(detector=BoundaryDetector())
    learner.observe(x, y)
    before = learner.state_dict()
    monkeypatch.setattr(frcl.learners.frcl, "StreamSteps", lambda *a: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        learner.observe(x, y + 1)
    after = learner.state_dict()
    assert same_tensors(before["tensors"], after["tensors"])
    assert before["meta"] == after["meta"]


def test_a_stream_resumes_bit_for_bit_after_labels_appeared(tmp_path):
    data = [*batches((0, 1), 12, 5), *batches((0, 1, 2), 20, 5)]
    whole, first = (small_learner(detector=BoundaryDetector()) for _ in range(2))
    logs = [whole.observe(x, y) for x, y in data]
    for x, y in data[:15]:
        first.observe(x, y)
    first.save(tmp_path / "model.frcl")
    second = frcl.load(tmp_path / "model.frcl", first.net)
    assert [repr(second.observe(x, y)) for x, y in data[15:]] == [repr(log) for log in logs[15:]]


def test_a_function_that_appears_does_not_disturb_the_test_of_the_others():
    """A detector that grows gives the statistic of one that had all functions from the beginning, of those shown."""
    rng = np.random.default_rng(3)
    whole, grown = SequentialTest(1, 3), SequentialTest(1, 2)
    for t in range(60):
        mean, variance = rng.standard_normal((1, 3)), np.ones(1)
        if t == 30:
            grown.grow(3, [0, 2])
        shown = mean if t >= 30 else mean[:, [0, 2]]
        expected, found = (
            whole.update(mean, variance, 32, [0, 2]),
            grown.update(shown, variance, 32, [0, 2] if t >= 30 else [0, 1]),
        )
        assert found == pytest.approx(expected)
    assert grown.fresh == []


# -- N -------------------------------------------------------------------------------------------------------------


def test_the_number_of_examples_is_estimated_and_a_declared_one_wins():
    assert estimated_size([], 32) == 1000
    assert estimated_size([], 3200) == 3200
    assert estimated_size([500, 700], 32) == 600
    assert estimated_size([500, 700], 650, before=100) == 750
    data = batches((0, 1), 40, 1)
    free, declared, option = small_learner(), small_learner(), small_learner(task_size=77)
    declared.start_task(size=55)
    for learner in (free, declared, option):
        for x, y in data:
            log = learner.observe(x, y)
        if learner is free:
            assert learner._state.current.stream.program.constants.N == 1280
            kl = log.kl_now
        learner.end_task()
    assert [one.tasks[0].size for one in (free, declared, option)] == [1280, 55, 77]
    assert kl > 0


# -- further steps, scaling, prequential evaluation ----------------------------------------------------------------


def test_further_steps_are_taken_on_the_window_and_resume_bit_for_bit(tmp_path):
    data = batches((0, 1, 2), 30, 5)
    slow, fast, first = small_learner(), *(small_learner(stream_steps=4, detector=BoundaryDetector()) for _ in range(2))
    for learner in (slow, fast):
        for x, y in data:
            log = learner.observe(x, y)
    assert (slow.step, fast.step) == (30, 120)
    x, y = blobs((0, 1, 2), 300, 5)
    assert fast.predict(x, task=0).log_predictive(y).mean() > slow.predict(x, task=0).log_predictive(y).mean() + 0.1
    for x, y in data[:20]:
        first.observe(x, y)
    first.save(tmp_path / "model.frcl")
    second = frcl.load(tmp_path / "model.frcl", first.net)
    for x, y in data[20:]:
        again = second.observe(x, y)
    assert repr(again) == repr(log)


def test_a_scaler_has_the_statistics_of_the_first_rows_of_each_column():
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0)) * 5 + 2
    x[:120, 2] = 7.0  # constant at first
    scaler = RunningScaler(rows=100)
    for part in x.split(20):
        scaler.learn(part)
    torch.testing.assert_close(scaler.mean[:2], x[:100, :2].double().mean(0))
    torch.testing.assert_close(scaler.std[:2], x[:100, :2].double().std(0, correction=0))
    torch.testing.assert_close(scaler.mean[2], x[:220, 2].double().mean())
    assert scaler(x).abs().max() <= 5
    assert scaler(x)[:, :2].dtype == x.dtype
    before = scaler.mean.clone()
    with pytest.raises(DataError, match="NaN or infinite"):
        scaler.learn(torch.tensor([[0.0, math.nan, 1.0]]))
    torch.testing.assert_close(scaler.mean, before)


def test_the_scale_is_that_of_the_inputs_before_the_first_boundary():
    """Statistics that moved with the new inputs would be further changes of them."""
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(60, 32, 4, generator=rng) + 6.0 * (torch.arange(60)[:, None, None] >= 20)
    rows[:40, :, 3] = 0.0  # constant at first
    learner = frcl.FRCL(frcl.MLP(4, (16, 8), seed=1), 10, detector=BoundaryDetector(), seed=0)
    run = Evaluation(learner, RunningScaler(10_000))
    found = [run.step(x, (x[:, 0] > x[:, 0].median()).long()).boundary for x in rows]
    at = found.index(True)
    assert 20 <= at <= 22
    seen = rows[: at + 1, :, :3].flatten(0, 1).double()
    torch.testing.assert_close(run.scaler.mean[:3], seen.mean(0))
    torch.testing.assert_close(run.scaler.std[:3], seen.std(0, correction=0))
    assert run.scaler.mean[3] > 0.1, "a column that has not varied has no scale yet"


def test_every_minibatch_is_predicted_before_it_is_learned():
    """Against a loop by hand; boundaries are scored where the true ones are known."""
    tasks = digits_tasks()
    generator, data = torch.Generator().manual_seed(5), []
    for name in "ABA":
        x, y = tasks[name]
        for _ in range(50):
            rows = torch.randint(len(x), (32,), generator=generator)
            data.append((x[rows], y[rows]))
    found = evaluate(digits_learner(), data, true=[50, 100])
    learner, right = digits_learner(), []
    for x, y in data:
        right.append(0.0 if not right else accuracy(learner, x, y, learner._state.number))
        learner.observe(x, y)
    assert found.right == pytest.approx(right)
    assert found.accuracy == pytest.approx(np.mean(right))
    assert (found.misses, found.false_alarms, found.tasks) == (0, 0, 2)
    assert [(one.task, one.returned) for one in found.stretches] == [(0, False), (1, False), (0, True)]
    assert found.stretches[1].accuracy == pytest.approx(np.mean(right[found.found[0] : found.found[1]]))
    with pytest.raises(DataError, match="no minibatch"):
        evaluate(digits_learner(), [])


@pytest.mark.slow
def test_the_command_reads_a_file_and_reports(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from frcl.cli import app

    monkeypatch.chdir(tmp_path)
    rows, tasks = [], digits_tasks()
    for name in "ABA":
        x, y = tasks[name]
        picked = torch.randint(len(x), (900,), generator=torch.Generator().manual_seed(len(rows)))
        rows += [[*x[i].tolist(), name, "yes" if y[i] else "no"] for i in picked]
    head = [*(f"x{i}" for i in range(64)), "stretch", "answer"]
    (tmp_path / "own.csv").write_text("\n".join(",".join(map(str, row)) for row in [head, *rows]))
    options = ["own.csv", "--target", "answer", "--task", "stretch", "--points", "10", "--width", "16", "--steps", "1"]
    done = CliRunner().invoke(app, ["stream", *options])
    assert done.exit_code == 0, done.output
    folder = tmp_path / "runs" / "own-stream"
    page = (folder / "report.html").read_text()
    assert "Prequential accuracy" in page
    assert "known" in page
    found = json.loads((folder / "stream.json").read_text())
    assert found["tasks"] == 2
    assert (found["misses"], found["false_alarms"]) == (0, 0)
    assert frcl.load(folder / "model.frcl", frcl.MLP(64, (16, 16))).likelihood(0).classes == ("no", "yes")
    wrongs = {"answer": ["--target", "answr"], "stretch": ["--target", "answer", "--task", "strech"]}
    for meant, wrong in wrongs.items():
        failed = CliRunner().invoke(app, ["stream", "own.csv", *wrong])
        assert failed.exit_code != 0
        assert f"did you mean {meant!r}" in str(failed.exception)


# -- around a switch -----------------------------------------------------------------------------------------------


def test_a_gradient_far_above_the_usual_moves_no_more_than_a_large_one():
    """Against the same optimiser with a gradient that is already cut to three times the root mean square."""
    generator, p = torch.Generator().manual_seed(0), torch.zeros(5)
    guarded, plain = (Optimiser({"p": p.clone()}, 0.01) for _ in range(2))
    guarded.guard = 3.0
    mean_square = 0.0
    for _ in range(40):
        g = torch.randn(5, generator=generator)
        for one in (guarded, plain):
            one.apply({"p": g})
        mean_square = 0.999 * mean_square + 0.001 * float(g.square().sum())
    torch.testing.assert_close(guarded.params["p"], plain.params["p"])
    usual = math.sqrt(mean_square / (1 - 0.999**40))
    g = 1000.0 * torch.randn(5, generator=generator)
    guarded.apply({"p": g})
    plain.apply({"p": g * (3 * usual / g.norm())})
    torch.testing.assert_close(guarded.params["p"], plain.params["p"], rtol=1e-4, atol=1e-6)


def test_a_missed_switch_leaves_more_of_the_features():
    """With the guard, minibatches of another task move the network less."""
    moved = {}
    for guard in (None, 3.0):
        learner = digits_learner()
        observed(learner, "A", 40)
        learner.detector._now.wait = 10**6  # no switch is declared from here on
        x, _ = digits_tasks()["A"]
        before = learner._model.features(x)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(frcl.learners.streaming, "GUARD", guard)
            observed(learner, "B", 3)
        moved[guard] = float((learner._model.features(x) - before).norm())
    assert moved[3.0] < moved[None]
