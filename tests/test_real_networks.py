"""Networks that people have, each learning two tasks and keeping the first: ResNet, transformer, LSTM, two inputs."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import frcl
from frcl import FRCL, FRCLPlus, MultiInput
from frcl.features import trained_parts
from frcl.methods import METHODS, make_learner

STEPS, MORE_STEPS, N = 100, {"transformer": 300}, 160  # twenty points hold 25 features: a second task takes longer


def images(task, seed):
    """8×8 images with a row and a column that are bright: in the first task the row says the class, then the column."""
    generator = torch.Generator().manual_seed(seed)
    x, y = 0.3 * torch.rand(N, 3, 8, 8, generator=generator), torch.arange(N) % 3
    other = torch.randint(3, (N,), generator=generator)
    for image, row, column in zip(x, *((y, other) if task == 0 else (other, y)), strict=True):
        image[:, 2 * row + 1] += 0.7
        image[:, :, 2 * column + 1] += 0.7
    return x, y + 3 * task


def sentences(task, seed):
    """Tokens, among them one of three words and one of three others: the first, then the other says the class."""
    generator = torch.Generator().manual_seed(seed)
    y, other = torch.arange(N) % 3, torch.randint(3, (N,), generator=generator)
    x = torch.randint(0, 20, (N, 9), generator=generator)
    first, second = (y, other) if task == 0 else (other, y)
    x[:, [1, 4, 6]], x[:, [0, 3, 7]] = (20 + first)[:, None], (23 + second)[:, None]
    return x, y + 3 * task


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x):
        return torch.relu(x + self.norms[1](self.second(torch.relu(self.norms[0](self.first(x))))))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU())
        self.blocks = nn.Sequential(Block(12), nn.MaxPool2d(2), Block(12))

    def forward(self, x):
        return self.blocks(self.stem(x)).flatten(1)


class Transformer(nn.Module):
    """A small Vision Transformer: patches of 4×4, a class token, two encoder layers."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 2, stride=2)
        self.token, self.places = nn.Parameter(torch.zeros(1, 1, 24)), nn.Parameter(0.1 * torch.randn(1, 17, 24))
        layer = nn.TransformerEncoderLayer(24, 4, 48, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        tokens = self.patches(x).flatten(2).mT
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.places
        return self.encoder(tokens)[:, 0]


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.lstm = nn.Embedding(30, 16), nn.LSTM(16, 24, batch_first=True)

    def forward(self, x):
        return self.lstm(self.words(x))[0].mean(1)


class Both(nn.Module):
    """Tokens and an image."""

    def __init__(self):
        super().__init__()
        self.reader, self.image = Reader(), nn.Sequential(nn.Flatten(), nn.Linear(192, 24))

    def forward(self, words, image):
        return torch.cat([self.reader(words), torch.relu(self.image(image))], 1)


def seeded(make):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


def resnet(**settings):
    """A ResNet whose batch norm has seen images of both kinds, as a pre-trained one has, then frozen."""
    net = seeded(ResNet)
    with torch.no_grad():
        for _ in range(30):
            net(torch.cat([images(task, 9)[0] for task in (0, 1)]))
    return frcl.freeze_batch_norm(net, **settings)


def keeps_the_first(learner, tasks, tests):
    """Accuracy of the first task after it and after the second, and that of the second."""
    learner.fit(*tasks[0])
    after = accuracy(learner, tests[0], 0)
    learner.fit(*tasks[1])
    return after, accuracy(learner, tests[0], 0), accuracy(learner, tests[1], 1)


def accuracy(learner, data, task):
    return float((learner.predict(data[0], task).labels == data[1]).float().mean())


def both_inputs(task, seed):
    words, y = sentences(task, seed)
    return (words, images(task, seed)[0]), y  # both say the class


CASES = {
    "resnet, batch norm frozen": (resnet, images),
    "resnet, affine part trained": (lambda: resnet(train_affine=True), images),
    "resnet, batch norm folded": (lambda: resnet(fold=True), images),
    "transformer": (lambda: seeded(Transformer), images),
    "lstm on tokens": (lambda: seeded(Reader), sentences),
    "two inputs": (lambda: MultiInput(seeded(Both), (sentences(0, 0)[0], images(0, 0)[0])), both_inputs),
}


@pytest.mark.parametrize("kind", [FRCL, FRCLPlus])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "transformer")) for name in CASES]
)
def test_two_tasks_are_learned_and_the_first_is_kept(name, kind):
    make, data = CASES[name]
    steps = MORE_STEPS.get(name, STEPS)
    learner = kind(make(), points=20, steps=steps, batch_size=32, lr=3e-3, search_steps=50, fisher_examples=100)
    before = {key: value.clone() for key, value in trained_parts(learner.net).items()}
    found = keeps_the_first(learner, [data(task, 1) for task in (0, 1)], [data(task, 2) for task in (0, 1)])
    assert min(found) > 0.9, found
    assert any(not torch.equal(value, before[key]) for key, value in trained_parts(learner.net).items())


def test_a_frozen_resnet_is_kept_whole():
    """The same ResNet with nothing trained but q(w): the first task cannot be forgotten at all."""
    learner = FRCL(frcl.FrozenFront(resnet()), points=40, steps=60, batch_size=32)
    x, y = images(0, 1)
    learner.fit(x, y)
    before = learner.predict(x, 0).mean
    learner.fit(*images(1, 1))
    torch.testing.assert_close(learner.predict(x, 0).mean, before)
    assert accuracy(learner, images(0, 2), 0) > 0.9
    assert accuracy(learner, images(1, 2), 1) > 0.9


@pytest.mark.parametrize("name", CASES)
def test_without_a_regulariser_the_first_task_is_forgotten(name):
    make, data = CASES[name]
    options = replace(METHODS["finetune"].options, steps=STEPS, batch_size=32, lr=3e-3)
    learner = make_learner(make(), options, seed=0)
    after, kept, second = keeps_the_first(learner, *([data(task, seed) for task in (0, 1)] for seed in (1, 2)))
    assert min(after, second) > 0.9
    assert kept < 0.8
