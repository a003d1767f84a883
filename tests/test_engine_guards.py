"""What must not go wrong in silence when seeds are computed as one, or when a step is stopped on its way."""

import copy

import pytest
import torch
from torch import nn

import frcl.engine.recorded as recorded_module
import frcl.engine.train as train_module
from frcl import FRCL, MLP, CheckpointError, ConvNet, Ensemble, NumericalError, TaskError
from frcl.experiment import runner
from frcl.experiment.config import resolve
from frcl.experiment.keeper import Interrupted, Observer
from frcl.learners.lockstep import together
from frcl.methods import METHODS, make_learner
from frcl.trees import data_mark
from streams import blobs

SMALL = {"points": 6, "steps": 30, "batch_size": 16, "search_steps": 5}


class Powered(nn.Module):
    """Two of these with different powers look alike from outside."""

    def __init__(self, power: int) -> None:
        super().__init__()
        self.net = MLP(4, (8, 6), seed=1).double()
        self.power = power

    def forward(self, x):
        return self.net(x) ** self.power


class Shifted(nn.Module):
    def __init__(self, shift: float) -> None:
        super().__init__()
        self.net = MLP(4, (8, 6), seed=1).double()
        self.register_buffer("shift", torch.full((6,), shift, dtype=torch.float64))

    def forward(self, x):
        return self.net(x) + self.shift


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 5, padding_idx=0)

    def forward(self, x):
        return self.table(x).sum(1)


def double(labels, seed):
    x, y = blobs(labels, 60, seed)
    return x.double(), y


def test_networks_that_only_look_alike_are_not_computed_as_one():
    nets, task = [Powered(1), Powered(3)], double((0, 1, 2), 1)
    ensemble = Ensemble(nets, members=2, **SMALL)
    with pytest.warns(UserWarning, match="cannot be batched"):
        ensemble.fit(*task)
    with pytest.warns(UserWarning, match="cannot be batched"):
        ensemble.fit(*double((0, 1, 2), 2))
    for i, net in enumerate(nets):
        alone = FRCL(net, seed=i, **SMALL)
        alone.fit(*task)
        alone.fit(*double((0, 1, 2), 2))
        torch.testing.assert_close(ensemble.members[i].mean(task[0], 0), alone.mean(task[0], 0), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("progressive", "pnc", "single")])
def test_buffers_are_those_of_each_seed(method):
    options = METHODS[method].options
    have = {**SMALL, "adapt_steps": 3, "fisher_examples": 30, "predict_samples": 4}
    given = {key: value for key, value in have.items() if hasattr(options, key)}

    def make(i):
        return make_learner(Shifted(float(i)), type(options)(**{**vars(options), **given}), seed=i)

    group, each = [make(i) for i in range(2)], [make(i) for i in range(2)]
    for number in range(2):
        task = double((0, 1, 2), number)
        for _ in together([one.learn(*task) for one in group]):
            pass
        for one in each:
            one.fit(*task)
    atol = (
        1e-6 if method == "sfsvi" else 1e-7
    )  # its divergence begins with no gradient, and Adam scales up what rounding leaves
    for one, other in zip(group, each, strict=True):
        torch.testing.assert_close(one.predict(task[0], 0).mean, other.predict(task[0], 0).mean, rtol=1e-6, atol=atol)


def test_the_padding_row_of_an_embedding_stays():
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 10, (60, 7), generator=g)
    group = [FRCL(Words(), seed=i, **SMALL) for i in range(2)]
    for _ in together([one.learn(x, x.sum(1) % 2) for one in group]):
        pass
    for one in group:
        assert (one.net.table.weight[0] == 0).all()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("stop", [KeyboardInterrupt, NumericalError])
def test_a_chunk_that_is_stopped_on_its_way_leaves_nothing_behind(count, stop, monkeypatch):
    """The loop of a GPU: all steps of a chunk or none of them."""
    monkeypatch.setattr(train_module, "can_record", lambda _: True)
    options = {**SMALL, "steps": 250}
    group, whole = ([FRCL(MLP(4, (8, 6), seed=1), seed=i, **options) for i in range(count)] for _ in range(2))
    task = blobs((0, 1, 2), 60, 1)
    for _ in together([one.learn(*task) for one in whole]):
        pass
    work = together([one.learn(*task) for one in group])
    next(work)
    calls, original = 0, recorded_module.spread

    def failing(*args):
        nonlocal calls
        calls += 1
        original(*args)
        if calls == 37:
            raise stop("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(recorded_module, "spread", failing)
        with pytest.raises(stop):
            next(work)
    assert group[0].step == 100
    for _ in together([one.learn(*task) for one in group]):
        pass
    for one, other in zip(group, whole, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.net.parameters(), other.net.parameters(), strict=True))


def test_members_of_an_interrupted_block_go_on_by_themselves():
    task = double((0, 1, 2), 1)
    net = MLP(4, (8, 6), seed=1).double()
    group = [FRCL(net, seed=i, **SMALL) for i in range(3)]
    work = together([one.learn(*task) for one in group])
    for _ in range(7):
        next(work)
    work.close()
    for i, one in enumerate(group):
        one.fit(*task)
        alone = FRCL(net, seed=i, **SMALL)
        alone.fit(*task)
        for a, b in zip(one.net.parameters(), alone.net.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
            assert a.untyped_storage().nbytes() == a.nbytes


def test_an_ensemble_interrupted_while_it_closes_a_task_can_go_on(monkeypatch):
    ensemble, task = Ensemble(MLP(4, (8, 6), seed=1), members=3, **SMALL), blobs((0, 1, 2), 60, 1)
    original = type(ensemble.members[0])._close

    def closing(self, *args):
        if self is ensemble.members[1]:
            raise KeyboardInterrupt
        return original(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(FRCL, "_close", closing)
        with pytest.raises(KeyboardInterrupt):
            ensemble.fit(*task)
    assert ensemble.tasks == ()
    ensemble.fit(*task)
    assert len(ensemble.tasks) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool])
def test_marks_tell_data_apart(dtype):
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 2, (200, 64), generator=g).to(dtype)
    swapped = x.clone()
    swapped[0], swapped[32] = x[32], x[0]
    one = x.clone()
    one[7, 3] = ~one[7, 3] if dtype == torch.bool else 1 - one[7, 3]
    marks = [data_mark(v) for v in (x, x.clone(), swapped, one, x[:100], x.reshape(100, 128))]
    assert marks[0] == marks[1]
    assert len(set(marks)) == 5


@pytest.mark.parametrize("method", [name for name in METHODS if name != "exact-gp"])  # which has no steps
def test_an_open_task_wants_its_own_labels_too(method):
    options = METHODS[method].options
    given = {key: value for key, value in SMALL.items() if hasattr(options, key)}
    learner = make_learner(MLP(4, (8, 6)), type(options)(**{**vars(options), **given}), seed=0)
    x, y = blobs((0, 1, 2), 60, 1)

    def stop(log):
        if log.step == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        learner.fit(x, y, on_step=stop)
    with pytest.raises(TaskError, match="still open"):
        learner.fit(x, y.flip(0))


@pytest.mark.parametrize("make", [lambda: MLP(9, (5, 4)), lambda: ConvNet(3, filters=(5, 4))])
def test_a_network_runs_the_layers_that_it_has(make):
    x = torch.randn(6, 3, 3)
    net = make()
    expected = net.layers(x.flatten(1) if isinstance(net, MLP) else x[:, None])
    torch.testing.assert_close(net(x), expected)
    torch.testing.assert_close(copy.deepcopy(net)(x), expected)
    heard = []
    handle = net.layers[1].register_forward_hook(lambda *_: heard.append(1))
    torch.testing.assert_close(net(x), expected)
    handle.remove()
    assert heard
    place = next(i for i, layer in enumerate(net.layers) if isinstance(layer, nn.ReLU))
    net.layers[place] = nn.Tanh()
    assert not torch.allclose(net(x), expected)


def test_a_run_that_was_changed_by_hand_is_refused_in_words(tmp_path):
    config = resolve(
        "split-digits",
        {"seeds": [0, 1, 2], "stream": {"tasks": 2}, "network": {"widths": [8]}, "learner": {**SMALL, "points": 5}},
    )
    stopping = iter([False] * 5)
    with pytest.raises(Interrupted):
        runner.run(config, tmp_path / "run", Observer(), stop=lambda: next(stopping, True))
    file = tmp_path / "run" / "config.toml"
    whole = file.read_text()
    file.write_text(whole.replace("seeds = [0, 1, 2]", "seeds = [0, 1]"))
    with pytest.raises(CheckpointError, match=r"other options than the run: seeds"):
        runner.resume(tmp_path / "run", Observer())
    file.write_text(whole)
    (tmp_path / "run" / "log.csv").unlink()
    with pytest.raises(CheckpointError, match=r"log\.csv: No such file.*put the file back"):
        runner.resume(tmp_path / "run", Observer())
