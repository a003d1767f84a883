"""Streams: known boundaries, Algorithm 1, the bounded window."""

import copy
import math

import pytest
import torch
from scipy import stats

import frcl
from frcl import BoundaryDetector, CheckpointError, DataError, LabelError, NumericalError, OptionError, TaskError
from frcl.boundary import Decision, welch
from frcl.learners.state import CurrentTask, Window
from streams import accuracy, blobs, same_tensors, small_learner


def batches(labels: tuple, count: int, seed: int, size: int = 32):
    x, y = blobs(labels, count * size, seed)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return [(x[rows], y[rows]) for rows in order.split(size)]


def test_known_boundaries():
    tasks = [batches((0, 1), 80, 1), batches((4, 5, 6), 80, 2)]
    learner = small_learner(points=10)
    for number, task in enumerate(tasks):
        learner.start_task(labels=sorted(set(torch.cat([y for _, y in task]).tolist())), size=80 * 32)
        for x, y in task:
            log = learner.observe(x, y)
            assert log.task == number
            assert not log.boundary
            assert math.isnan(log.statistic)
        summary = learner.end_task()
        assert summary.size == 80 * 32
    for number, task in enumerate(tasks):
        assert sum(accuracy(learner, x, y, number) for x, y in task) / len(task) > 0.95


def test_one_observe_is_one_step_of_fit():
    """A stream fed with the minibatches that fit() would draw ends at the same network."""
    x, y = blobs((0, 1, 2), 90, 1)
    fitted, streamed = small_learner(steps=15), small_learner(steps=15)
    for learner in (fitted, streamed):  # its data decide the scale of the features
        learner.fit(*blobs((0, 1), 60, 2))
    g = torch.Generator()
    g.set_state(fitted._state.streams["batches"].get_state())
    fitted.fit(x, y)
    streamed.start_task(labels=(0, 1, 2), size=90)
    for _ in range(15):
        rows = torch.randint(90, (32,), generator=g)
        streamed.observe(x[rows], y[rows])
    assert same_tensors(fitted.net.state_dict(), streamed.net.state_dict())


SOON = {"warm_up": 2, "minimum_time": 2}


def record(current: CurrentTask, monkeypatch) -> None:
    """From now on the task's steps and scores go the way of a recording, as on CUDA, but without a graph."""
    program = current.stream.program
    monkeypatch.setattr("frcl.engine.train.EAGER", 0)
    monkeypatch.setattr("frcl.engine.train.can_record", lambda programs: programs[0] is program)
    if current.score is not None:
        monkeypatch.setattr(current.score, "_is_recorded", lambda x: True)


@pytest.mark.parametrize("rescore", [False, True])
def test_a_recorded_step_is_the_eager_step(rescore, monkeypatch):
    """What is recorded on CUDA, called without a graph: scores, terms and the state after it."""
    eager, recorded = (
        small_learner(
            steps=10, past_tasks_per_step=1, detector=BoundaryDetector(1e3, window=3, rescore=rescore, **SOON)
        )
        for _ in range(2)
    )
    statistics = []
    for learner in (eager, recorded):
        for number, labels in enumerate(((0, 1), (1, 2), (0, 2))):
            learner.fit(*blobs(labels, 90, number))
    for number, (x, y) in enumerate(batches((0, 1, 2), 20, 5)):
        logs = [learner.observe(x, y) for learner in (eager, recorded)]
        assert repr(logs[0]) == repr(logs[1])
        statistics.append(logs[0].statistic)
        if number == 1:  # the first minibatch of a task is not scored
            record(recorded._state.current, monkeypatch)
    assert sum(math.isfinite(value) for value in statistics) == 15
    current = recorded._state.current
    assert {shape[0] for shape in current.score._recorded} == ({32, 128} if rescore else {32})
    assert current.stream.recorded is not None
    taken = current.stream._static[0].clone()
    recorded.observe(x[:7], y[:7])  # of another shape: eager
    eager.observe(x[:7], y[:7])
    assert same_tensors(eager.state_dict()["tensors"], recorded.state_dict()["tensors"])
    assert torch.equal(current.stream._static[0], taken)
    copied = copy.deepcopy(recorded)._state.current
    assert copied.stream is copied.score is None


def test_a_recorded_step_with_an_infinite_loss_is_not_taken(monkeypatch):
    learner = small_learner()
    x, y = blobs((0, 1, 2), 64, 5)
    learner.observe(x, y)
    record(learner._state.current, monkeypatch)
    before = learner.state_dict()["tensors"]
    with pytest.raises(NumericalError, match="not taken"):
        learner.observe(x * 1e30, y)
    assert same_tensors(before, learner.state_dict()["tensors"])


def test_the_last_minibatches_are_scored_again_by_the_model_as_it_is():
    learner = small_learner(points=6, initial_std=1.0, detector=BoundaryDetector(1e3, window=3, rescore=True))
    data = batches((0, 1, 2), 30, 5)
    for number, (x, y) in enumerate(data):
        if number < 25:
            learner.observe(x, y)
            continue
        old, new = (
            learner.familiarity(part).double().log()
            for part in (torch.cat([b for b, _ in data[number - 3 : number]]), x)
        )
        expected = stats.ttest_ind(old.numpy(), new.numpy(), equal_var=False).statistic.max()
        assert learner.observe(x, y).statistic == pytest.approx(expected, rel=1e-6)


def test_learning_itself_is_no_change_where_the_reference_is_scored_again():
    """From a mean of zero and a small L the score grows from step to step, for all inputs alike."""
    largest = {}
    for rescore in (False, True):
        detector = BoundaryDetector(1e3, window=10, rescore=rescore)
        learner = small_learner(points=6, initial_std=0.1, initial_mean="zero", detector=detector)
        logs = [learner.observe(x, y) for x, y in batches((0, 1, 2), 150, 5)]
        largest[rescore] = max(log.statistic for log in logs[21:])
    assert largest[True] < 4.5 < largest[False]


def test_a_stream_whose_reference_is_scored_again_resumes_bit_for_bit(tmp_path):
    detector = BoundaryDetector(1e3, window=4, rescore=True)
    whole, first = (small_learner(points=6, detector=detector) for _ in range(2))
    data = batches((0, 1, 2), 40, 5)
    for x, y in data:
        log = whole.observe(x, y)
    for x, y in data[:30]:
        first.observe(x, y)
    first.save(tmp_path / "model.frcl")
    second = frcl.load(tmp_path / "model.frcl", first.net)
    for x, y in data[30:]:
        again = second.observe(x, y)
    assert again == log
    assert same_tensors(whole.state_dict()["tensors"], second.state_dict()["tensors"])


@pytest.mark.parametrize("rescore", [False, True])
def test_classes_that_a_task_has_not_shown_are_not_tested(rescore, tmp_path):
    detector = BoundaryDetector(1e9, warm_up=1, minimum_time=1, rescore=rescore, aggregate="mean")
    learner = small_learner(points=5, labels=(0, 1, 2, 3), detector=detector)
    *stream, (last, labels), (x, y) = batches((1, 3), 8, 1)
    for minibatch in [*stream, (last, labels)]:
        learner.observe(*minibatch)
    learner.save(tmp_path / "a.frcl")
    again = frcl.load(tmp_path / "a.frcl", net=small_learner().net)
    old = learner.familiarity(last) if rescore else learner.detector._now.reference[-1].exp()
    each = welch(old.double().log(), learner.familiarity(x).double().log())
    everything = copy.deepcopy(learner)
    vars(everything.detector)["all_functions"] = True
    assert everything.observe(x, y).statistic == pytest.approx(float(each.mean()), rel=1e-5)
    shown = float(each[[1, 3]].mean())
    assert abs(shown - float(each.mean())) > 1e-3
    assert learner.observe(x, y).statistic == pytest.approx(shown, rel=1e-5)
    assert again.observe(x, y).statistic == pytest.approx(shown, rel=1e-5)


def test_hidden_boundaries_are_found_and_each_task_remembered():
    """Algorithm 1: three tasks in one stream, no word about when they change."""
    tasks = [batches((0, 1), 120, seed, size=64) for seed in (11, 12, 13)]
    learner = small_learner(points=10, initial_std=1.0, detector=BoundaryDetector(5.0))
    found = []
    for t, (x, y) in enumerate(batch for task in tasks for batch in task):
        if learner.observe(x, y).boundary:
            found.append(t)
    assert found == [120, 240]
    assert len(learner.tasks) == 2
    for number, task in enumerate(tasks):
        assert sum(accuracy(learner, x, y, number) for x, y in task) / len(task) > 0.9


def test_the_points_of_a_task_found_by_itself_are_from_that_task():
    first, second = batches((0, 1), 60, 11, size=64), batches((0, 1), 60, 12, size=64)
    learner = small_learner(points=10, initial_std=3.0, detector=BoundaryDetector(5.0))
    for x, y in first + second:
        learner.observe(x, y)
    old = {tuple(row) for x, _ in first for row in x.tolist()}
    assert len(learner.tasks) == 1
    assert all(tuple(row) in old for row in learner.tasks[0].Z.tolist())


def test_no_boundary_before_the_task_can_be_summarised():
    """With more points than examples seen so far the detector learns but does not decide."""
    learner = small_learner(
        points=200, window=300, initial_std=1.0, detector=BoundaryDetector(-1e9, warm_up=0, minimum_time=0)
    )
    boundaries = [learner.observe(x, y).boundary for x, y in batches((0, 1), 8, 1)]
    assert boundaries == [False] * 7 + [True]


def test_boundary_detection_can_be_ended_by_hand():
    learner = small_learner(detector=BoundaryDetector(5.0, warm_up=3, minimum_time=0))
    for x, y in batches((0, 1), 5, 1):
        learner.observe(x, y)
    learner.end_task()
    assert learner.detector.state_dict()["in_task"] == 0
    learner.observe(*batches((0, 1), 1, 2)[0])
    assert learner.predict(torch.zeros(1, 4)).probs.shape == (1, 2)


def test_the_detector_given_is_not_shared():
    detector = BoundaryDetector(5.0)
    learner = small_learner(detector=detector)
    for x, y in batches((0, 1), 5, 1):
        learner.observe(x, y)
    assert detector.state_dict()["in_task"] == 0


def test_window_is_a_uniform_sample(generator):
    """Reservoir sampling: every example is held equally often; the content is bounded and copied."""
    counts = torch.zeros(60)
    for _ in range(2000):
        window = Window(12)
        for rows in torch.arange(60).split(7):
            window.add(rows[:, None].float(), rows, generator)
        x, y = window.data()
        assert len(x) == len(window) == 12
        assert torch.equal(x[:, 0].long(), y)
        counts[y] += 1
    torch.testing.assert_close(counts / 2000, torch.full((60,), 0.2), rtol=0, atol=0.045)


def test_labels_declared_once_for_all_tasks():
    learner = small_learner(labels=(0, 1, 2))
    x, y = blobs((0, 1), 32, 1)
    learner.observe(x, y)
    assert learner.predict(x, task=0).classes == (0, 1, 2)
    learner.observe(x, y + 1)


def test_orders_that_make_no_sense():
    x, y = blobs((0, 1), 32, 1)
    learner = small_learner()
    with pytest.raises(TaskError, match="no task is open"):
        learner.end_task()
    with pytest.raises(TaskError, match="nothing has been learned"):
        learner.predict(x)
    with pytest.raises(OptionError, match="size is the number of examples"):
        learner.start_task(size=0)
    learner.observe(x, y)
    with pytest.raises(TaskError, match="still open"):
        learner.start_task()
    with pytest.raises(TaskError, match="still open"):
        learner.fit(x, y)
    with pytest.raises(LabelError, match="label 7 was never seen in this task"):
        learner._state.current.likelihood.encode(y + 7, learner.device, learner.dtype)
    with pytest.raises(OptionError, match="cannot be chosen from a window of 3"):
        small_learner(window=3).observe(x, y)
    few = small_learner(points=50)
    few.observe(x, y)
    with pytest.raises(DataError, match="32 examples are fewer than the 50 inducing points"):
        few.end_task()
    few.observe(x, y)
    few.end_task()


def test_function_space_in_a_stream():
    learner = small_learner(inference="function", points=20)
    with pytest.raises(DataError, match="fewer than the 20 inducing points"):
        learner.observe(*blobs((0, 1), 8, 1))
    for x, y in batches((0, 1), 100, 1):
        learner.observe(x, y)
    summary = learner.end_task()
    assert summary.belief.M == 20
    assert accuracy(learner, *blobs((0, 1), 100, 1), task=0) > 0.9


# -- the calibrated detector ---------------------------------------------------------------------------------------


def test_the_default_detector_finds_new_inputs_and_each_task_is_remembered():
    tasks = [batches((0, 1), 90, seed, size=64) for seed in (11, 12, 13)]
    learner = small_learner(points=10, detector=BoundaryDetector())
    logs = [learner.observe(x, y) for task in tasks for x, y in task]
    assert [t for t, log in enumerate(logs) if log.boundary] == [90, 180]
    assert [log.change for log in logs if log.boundary] == ["sharp", "sharp"]
    for number, task in enumerate(tasks):
        assert sum(accuracy(learner, x, y, number) for x, y in task) / len(task) > 0.9


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("classes", [(0, 1), (0, 1, 2)])
def test_labels_that_change_their_meaning_are_found_through_their_density(labels, classes):
    detector = BoundaryDetector(labels=labels, expected_run=10_000)
    learner = small_learner(points=10, detector=detector, labels=classes)
    found = []
    for t, (x, y) in enumerate(batches(classes, 103, 1, size=64)):
        if learner.observe(x, y if t < 100 else (y + 1) % len(classes)).boundary:
            found.append(t)
    assert (100 in found) == labels


def test_the_density_of_labels_is_that_of_the_prediction_where_the_class_was_shown(monkeypatch):
    learner = small_learner(points=10, detector=BoundaryDetector(), labels=(0, 1, 2))
    for x, y in batches((0, 2), 6, 1):
        learner.observe(x, y)
    x, y = blobs((0, 1, 2), 20, 1)
    expected = learner.predict(x, task=0).log_predictive(y)[y != 1]
    given = []
    update = learner.detector.update
    monkeypatch.setitem(
        vars(learner.detector), "update", lambda *a, **k: given.append(k["log_density"]) or update(*a, **k)
    )
    learner.observe(x, y)
    torch.testing.assert_close(given[0], expected)
    assert learner._state.current.shown == {0, 1, 2}


def test_scores_are_compared_with_those_of_the_first_minibatch_by_the_same_model(monkeypatch):
    learner = small_learner(points=10, detector=BoundaryDetector(), labels=(0, 1))
    data = batches((0, 1), 12, 1)
    for x, y in data[:-1]:
        learner.observe(x, y)
    given, expected = [], learner.familiarity(data[0][0])
    update = learner.detector.update
    monkeypatch.setitem(
        vars(learner.detector), "update", lambda *a, **k: given.append(k["reference"]) or update(*a, **k)
    )
    learner.observe(*data[-1])
    torch.testing.assert_close(given[0], expected)


def test_points_are_not_chosen_among_what_came_after_the_change(monkeypatch):
    data = batches((0, 1), 40, 1)
    learner = small_learner(points=6, detector=BoundaryDetector())
    for x, y in data[:-1]:
        learner.observe(x, y)
    late = {tuple(row) for x, _ in data[9:39] for row in x.tolist()}
    monkeypatch.setitem(vars(learner.detector), "update", lambda *a, **k: Decision(True, 9.0, change="gradual", age=30))
    log = learner.observe(*data[-1])
    assert (log.boundary, log.change, log.age) == (True, "gradual", 30)
    assert not late & {tuple(row) for row in learner.tasks[0].Z.tolist()}


def test_a_window_without_its_last_minibatches(generator):
    window = Window(30)
    for number in range(1, 11):
        window.add(torch.full((10, 1), float(number)), torch.full((10,), number), generator)
    x, y = window.data_without(3, 1)
    assert len(x) < len(window)
    assert torch.equal(y, window.data()[1][window.data()[1] <= 7])
    assert torch.equal(x[:, 0].long(), y)
    assert len(window.data_without(10, 1)[0]) == 30, "there is nothing else to choose from"
    assert len(window.data_without(0, 1)[0]) == 30


def test_a_stream_with_the_default_detector_resumes_bit_for_bit(tmp_path):
    whole, first = (small_learner(points=6, detector=BoundaryDetector()) for _ in range(2))
    data = [*batches((0, 1, 2), 45, 5), *batches((0, 1, 2), 40, 6)]
    logs = [whole.observe(x, y) for x, y in data]
    for x, y in data[:40]:
        first.observe(x, y)
    first.save(tmp_path / "model.frcl")
    second = frcl.load(tmp_path / "model.frcl", first.net)
    assert [repr(second.observe(x, y)) for x, y in data[40:]] == [repr(log) for log in logs[40:]]
    assert same_tensors(whole.state_dict()["tensors"], second.state_dict()["tensors"])
    assert whole.tasks, "a switch was found"


def test_a_damaged_window_is_refused():
    learner = small_learner(points=6, detector=BoundaryDetector())
    for x, y in batches((0, 1), 3, 5):
        learner.observe(x, y)
    state = learner.state_dict()
    place = next(name for name in state["tensors"] if name.endswith("came"))
    state["tensors"][place] = state["tensors"][place] + 5
    with pytest.raises(CheckpointError, match="window of the current task"):
        learner.load_state_dict(state)


@pytest.mark.slow
def test_a_model_that_is_learning_causes_no_more_false_alarms_than_promised():
    """Stationary streams, from the first minibatch on: the statistic of chance exceeds log₁₀ T once in T of them."""
    total, alarms = 0, 0
    for seed in range(4):
        learner = small_learner(points=6, seed=seed, detector=BoundaryDetector(expected_run=1e12))
        statistic = [learner.observe(x, y).statistic for x, y in batches((0, 1, 2), 300, seed)]
        above = [t for t, value in enumerate(statistic) if value > math.log10(300)]
        total, alarms = total + (above[0] + 1 if above else 300), alarms + bool(above)
    assert total / max(alarms, 1) > 240
