"""Augmentation of training minibatches: the formula of crops and flips, and its place in training of every method."""

import contextlib
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import frcl
from frcl import FRCL, MLP, CropFlip, DataError, OptionError, Replay
from frcl.data.options import BenchmarkOptions
from frcl.engine.program import Unit
from frcl.engine.recorded import Recorded
from frcl.experiment.config import Config
from frcl.experiment.keeper import Observer
from frcl.experiment.runner import run
from frcl.learners.lockstep import finish
from frcl.methods import METHODS, make_learner
from frcl.seeding import fork

GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.rand(60, 1, 6, 6, generator=GENERATOR), torch.arange(60) % 3
TRAINED = [name for name in METHODS if name != "exact-gp"]
SMALL = {
    "steps": 6, "batch_size": 8, "points": 6, "search_steps": 5, "fisher_examples": 20, "adapt_steps": 2,
    "compress_steps": 4, "predict_samples": 4,
}  # fmt: skip


def make(name: str, seed: int = 0):
    options = METHODS[name].options
    have = {field.name for field in fields(options)}
    given = {key: value for key, value in SMALL.items() if key in have}
    return make_learner(MLP(36, (8, 4), seed=1), replace(options, **given), seed=seed)


def means(learner, tasks: int):
    return torch.cat([learner.predict(X, task).mean for task in range(tasks)], 1)


def slow(x, draws, padding):
    """The same image by image: pad, cut out, mirror."""
    out = []
    for image, top, left, mirrored in zip(x, *(value.tolist() for value in draws), strict=True):
        height, width = image.shape[-2:]
        cut = F.pad(image, (padding,) * 4)[..., top : top + height, left : left + width]
        out.append(cut.flip(-1) if mirrored else cut)
    return torch.stack(out)


@pytest.mark.parametrize("shape", [(200, 3, 5, 7), (200, 6, 4)])
def test_crops_and_flips_are_those_of_one_image_at_a_time(shape):
    x, augment = torch.rand(shape, generator=GENERATOR), CropFlip(2)
    draws = augment.draws((len(x),), fork(0, "crops"))
    assert torch.equal(augment.apply(x, draws), slow(x, draws, 2))
    for offsets, most in zip(draws, (5, 5, 2), strict=True):
        assert offsets.unique().tolist() == list(range(most))
    assert torch.equal(augment(x, fork(0, "crops")), augment.apply(x, draws))


def test_nothing_is_mirrored_or_moved_that_should_not_be():
    x = torch.rand(50, 3, 4, 4, generator=GENERATOR)
    assert torch.equal(CropFlip(0, flip=False)(x, fork(0, "a")), x)
    either = CropFlip(0)(x, fork(0, "a"))
    mirrored = torch.tensor([torch.equal(a, b.flip(-1)) for a, b in zip(either, x, strict=True)])
    assert 10 < int(mirrored.sum()) < 40
    assert torch.equal(either[~mirrored], x[~mirrored])


def test_flat_square_images_are_moved_as_images():
    x, augment = torch.rand(50, 36, generator=GENERATOR), CropFlip(2)
    draws = augment.draws((50,), fork(0, "crops"))
    assert torch.equal(augment.apply(x, draws), slow(x.view(50, 6, 6), draws, 2).flatten(1))


def test_wrong_settings_and_flat_inputs_are_refused():
    for wrong in ({"padding": -1}, {"padding": 1.5}, {"flip": 1}):
        with pytest.raises(OptionError, match="CropFlip"):
            CropFlip(**wrong)
    learner = FRCL(MLP(35, (4,)), points=3, steps=2, batch_size=4)
    with pytest.raises(DataError, match="need images"):
        learner.fit(X.flatten(1)[:, 1:], Y, augment=CropFlip())
    with pytest.raises(OptionError, match="augment is a function"):
        learner.fit(X.flatten(1)[:, 1:], Y, augment="crop")
    with pytest.raises(OptionError, match="nothing to augment"):
        next(frcl.ExactGP().learn(X, Y, augment=CropFlip()))


@pytest.mark.parametrize("name", TRAINED)
def test_every_method_learns_from_changed_minibatches(name):
    def learned(augment):
        learner = make(name)
        for shift in (0, 3):
            learner.fit(X, Y + shift, **({} if augment is None else {"augment": augment}))
        return means(learner, 2)

    plain, changed = learned(None), learned(CropFlip(1))
    assert torch.equal(learned(CropFlip(0, flip=False)), plain)
    assert torch.equal(learned(CropFlip(1)), changed)
    assert not torch.equal(changed, plain)


def _rest(work):
    """What is left of the work after its steps."""
    answer = None
    with contextlib.suppress(StopIteration):
        while True:
            answer = yield work.send(answer)


class Stop(Exception):
    pass


@pytest.mark.parametrize("name", ["frcl", "frcl-plus", "joint", "replay"])
def test_an_interrupted_task_goes_on_with_the_same_changes(name):
    def stop(log):
        if log.step == 4:
            raise Stop

    whole, first, second = make(name), make(name), make(name)
    for one in (whole, first):
        one.fit(X, Y, augment=CropFlip(1))
    whole.fit(X, Y + 3, augment=CropFlip(1))
    with pytest.raises(Stop):
        first.fit(X, Y + 3, augment=CropFlip(1), on_step=stop)
    second.load_state_dict(first.state_dict())
    second.fit(X, Y + 3, augment=CropFlip(1))
    assert torch.equal(means(second, 2), means(whole, 2))


@pytest.mark.parametrize("name", ["frcl", "frcl-plus", "ewc", "replay"])
def test_seeds_together_are_changed_as_alone(name):
    alone, block = ([make(name, seed) for seed in (1, 2)] for _ in range(2))
    for shift in (0, 3):
        for one in alone:
            one.fit(X, Y + shift, augment=CropFlip(1))
        finish([one.learn(X, Y + shift, augment=CropFlip(1)) for one in block])
    for one, other in zip(alone, block, strict=True):
        torch.testing.assert_close(means(one, 2), means(other, 2), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("seeds", [[3], [3, 4]])
def test_the_loop_that_is_recorded_on_cuda_changes_minibatches_alike(seeds):
    eager, recorded = ([make("frcl", seed) for seed in seeds] for _ in range(2))
    finish([one.learn(X, Y, augment=CropFlip(1)) for one in eager])
    works = [one.learn(X, Y, augment=CropFlip(1)) for one in recorded]
    units = [Unit(next(work)) for work in works]
    for _ in Recorded(units).steps():
        pass
    for work in works:
        finish([_rest(work)])
    for one, other in zip(eager, recorded, strict=True):
        torch.testing.assert_close(means(one, 1), means(other, 1), rtol=1e-4, atol=1e-5)


class Seen(nn.Module):
    """Remembers what it was called with."""

    def __init__(self):
        super().__init__()
        self.inputs, self.layer = [], nn.Linear(36, 4)

    def __deepcopy__(self, memo):
        return self

    def forward(self, x):
        self.inputs.append(x.detach().clone())
        return self.layer(x.flatten(1))


@pytest.mark.parametrize("settings", [{}, {"past_tasks_per_step": 1}])
def test_stored_examples_that_are_replayed_are_changed_too(settings):
    net = Seen()
    learner = FRCL(net, points=6, regularisers=[Replay(points=9)], steps=3, batch_size=8, **settings)
    for shift in (0, 3, 6):
        learner.fit(X, Y + shift, augment=CropFlip(1))
    kept = learner.kept_inputs
    assert len(kept()) == 3
    buffers = torch.cat([x.inputs for x in learner.regularisers[0].x])
    last = [x for x in net.inputs if len(x) in (9, 18)]
    assert last, "buffers pass through the network in one batch"
    assert not any(torch.equal(x, buffers[: len(x)]) for x in last)
    padded = {image.tobytes() for top in range(3) for left in range(3) for image in _cuts(buffers, top, left)}
    assert all(image.numpy().tobytes() in padded for x in last for image in x)


def _cuts(x, top, left):
    cut = F.pad(x, (1,) * 4)[..., top : top + 6, left : left + 6]
    return [np.ascontiguousarray(image) for image in torch.cat([cut, cut.flip(-1)]).numpy()]


def test_the_command_line_option_is_for_images_and_known_boundaries(tmp_path):
    assert BenchmarkOptions().augmentation is None
    assert BenchmarkOptions(crop=4).augmentation == CropFlip(4, flip=False)
    assert BenchmarkOptions(flip=True).augmentation == CropFlip(0)
    with pytest.raises(OptionError, match="leave them out with hidden boundaries"):
        Config(hidden_boundaries=True, stream=BenchmarkOptions(crop=1))
    with pytest.raises(OptionError, match="crop=2 has no meaning for permuted-digits"):
        frcl.data.open_benchmark("permuted-digits", BenchmarkOptions(crop=2), seed=0)


def test_a_run_with_crops_differs_from_one_without_and_repeats_itself(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for task in range(2):
        images = np.random.default_rng(task).integers(0, 256, (40, 3, 8, 8), dtype=np.uint8)
        np.savez(data / f"task{task}.npz", x=images, y=np.arange(40) % 2, x_test=images, y_test=np.arange(40) % 2)

    def losses(name, **stream):
        options = replace(METHODS["frcl"].options, steps=5, batch_size=8, points=4, search_steps=3)
        config = Config(str(data), seeds=(0, 1), stream=BenchmarkOptions(**stream), learner=options)
        return run(config, tmp_path / name, Observer()).nll

    plain, once, again = losses("a"), losses("b", crop=2, flip=True), losses("c", crop=2, flip=True)
    assert once == again
    assert once != plain
