"""The recipes of CONTRIBUTING.md, applied literally to a copy of the repository, which is then checked and used."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RECIPES = (ROOT / "CONTRIBUTING.md").read_text()
BLOCKS = re.findall(r"^```\w+ (file|append|change)=(\S+)\n(.*?)^```$", RECIPES, re.S | re.M)
PARTS = (
    "src", "tests", "tools", "docs", "examples", "paper", "pyproject.toml", "ARCHITECTURE.md", "CONTRIBUTING.md",
    "REPRODUCTION.md",
)  # fmt: skip


def changed(text: str, diff: str) -> str:
    """The text with the change that the lines of a diff describe, which fits in one place."""
    lines = diff.splitlines(keepends=True)
    old, new = ("".join(line[1:] for line in lines if line[0] in kind) for kind in (" -", " +"))
    assert text.count(old) == 1, old
    return text.replace(old, new)


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """A copy of the repository with all recipes applied."""
    folder = tmp_path_factory.mktemp("copy")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, folder)
    for action, name, text in BLOCKS:
        path = folder / name
        assert path.exists() == (action != "file"), f"{name}, {action}"
        before = path.read_text() if action != "file" else ""
        path.write_text(changed(before, text) if action == "change" else f"{before}\n\n{text}" if before else text)
    return folder


def python(package: Path, *arguments: str) -> str:
    """The output of a Python process that imports the copy; it must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(package / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=package, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


DATA = """
import torch, frcl
generator = torch.Generator().manual_seed(0)
x = torch.randn(120, 2, generator=generator)
y = (x[:, 0] > 0).long()
net = frcl.MLP(2, (16, 8)).double()
x = x.double()
"""

CRITERION = """
learner = frcl.FRCL(net, points=6, steps=20, selection="farthest", search_steps=100)
summary = learner.fit(x, y)
with torch.no_grad():
    distance = learner.feature_scale * torch.cdist(learner.net(x), learner.net(summary.Z)).amin(1).max()
torch.testing.assert_close(torch.tensor(summary.after).double(), distance)
assert summary.after < summary.before
again = frcl.FRCL(net, points=6, steps=20, selection="trace", search_steps=100).fit(x, y)
assert abs(again.after - summary.after) > 1e-3
"""

LIKELIHOOD = """
from frcl.likelihoods import LIKELIHOODS
from torch.distributions import Exponential, Normal, kl_divergence

waiting = torch.empty(120).double().exponential_(generator=generator) / torch.exp(x[:, 0])
learner = frcl.FRCL(net, points=6, steps=200, lr=1e-2, likelihood="exponential")
learner.fit(x, waiting)
p = learner.predict(x, task=0)
assert type(learner.likelihood(0)) is LIKELIHOODS["exponential"]
torch.testing.assert_close(p.target_mean, torch.exp(-p.mean + 0.5 * p.variance))
assert torch.corrcoef(torch.stack([p.mean[:, 0], x[:, 0]]))[0, 1] > 0.7
learner.save("times.frcl")
assert torch.equal(frcl.load("times.frcl", net).predict(x, task=0).target_mean, p.target_mean)

own = LIKELIHOODS["exponential"](1)  # its formulas against brute force over f
mean, variance, y_one = (torch.tensor([[v]]).double() for v in (0.3, 0.5, 1.7))
f = torch.linspace(-8, 9, 20001, dtype=torch.float64)[:, None]
weight = Normal(mean, variance.sqrt()).log_prob(f).exp() * (f[1] - f[0])
log_p = Exponential(f.exp()).log_prob(y_one)
close = torch.testing.assert_close
draws, none = torch.empty(0), {}
close(own.log_prob(f, y_one, none), log_p[:, 0])
close(own.expected_log_prob(mean, variance, y_one, draws, none), (weight * log_p).sum(0))
close(own.log_predictive(mean, variance, y_one, draws, none), (weight * log_p.exp()).sum(0).log(), atol=1e-6, rtol=0)
moments = own.predictive(mean, variance, draws, none)
m = (weight * torch.exp(-f)).sum()
close(moments.mean[0, 0], m)
close(moments.variance[0, 0], (weight * 2 * torch.exp(-2 * f)).sum() - m**2)
a, b = torch.tensor([[0.2]]).double(), torch.tensor([[-0.4]]).double()
close(own.divergence(a, b, torch.ones(1, 1), none), kl_divergence(Exponential(a.exp()), Exponential(b.exp()))[0])
"""

REGULARISER = """
from frcl.regularisers import FunctionalKL
from frcl.regularisers.l2 import L2

def moved(weight):
    learner = frcl.FRCL(net, points=6, steps=30, regularisers=[FunctionalKL(), L2(weight)])
    learner.fit(x, y)
    before = torch.cat([p.detach().flatten() for p in learner.net.parameters()])
    logs = []
    learner.fit(x, (x[:, 1] > 0).long(), on_step=logs.append)
    after = torch.cat([p.detach().flatten() for p in learner.net.parameters()])
    return float((after - before).norm()), learner, logs

free, _, _ = moved(0.0)
held, learner, logs = moved(10.0)
assert held < 0.5 * free
assert logs[-1].kl_past > 0
learner.save("l2.frcl")
assert [one.name for one in frcl.load("l2.frcl", net).regularisers] == ["functional-kl", "l2"]
"""


def test_the_recipes_name_one_file_each():
    folders = [str(Path(name).parent) for action, name, _ in BLOCKS if action == "file"]
    assert folders == [f"src/frcl/{room}" for room in ("selection", "likelihoods", "data", "regularisers")]


def test_a_method_takes_one_file_beside_that_of_its_regulariser():
    changed = {name for action, name, _ in BLOCKS if action != "file" and name.startswith("src")}
    assert changed == {"src/frcl/methods.py"}


def test_a_copy_with_the_recipes_passes_the_linter(package):
    pytest.importorskip("ruff")
    python(package, "-m", "ruff", "check", "--no-cache", ".")
    python(package, "-m", "ruff", "format", "--no-cache", "--check", ".")


@pytest.mark.slow
def test_a_copy_with_the_recipes_passes_the_type_checker(package):
    """The files that the recipes write or change; the others are read for their types."""
    pytest.importorskip("mypy")
    files = {name for _, name, _ in BLOCKS if name.endswith(".py")}
    cache = ("--cache-dir", str(ROOT / ".mypy_cache" / "test_recipes"), "--follow-imports", "silent")
    python(package, "-m", "mypy", *cache, *sorted(files))


@pytest.mark.slow
def test_the_suites_take_what_the_recipes_add(package):
    """The contract of every method with the new one, and the pages that list every module, likelihood and option."""
    suite = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")
    python(package, *suite, "-k", "l2", "tests/test_methods_contract.py", "tests/test_methods_together.py")
    python(package, "tools/reference.py")
    lists = "option_tables or every_likelihood or the_architecture"
    python(package, *suite, "-k", lists, "tests/test_docs.py")


@pytest.mark.slow
@pytest.mark.parametrize("code", [CRITERION, LIKELIHOOD, REGULARISER], ids=["criterion", "likelihood", "regulariser"])
def test_what_a_recipe_adds_is_used(package, code):
    python(package, "-W", "error", "-c", DATA + code)


@pytest.mark.slow
def test_the_benchmark_of_the_recipe_can_be_opened(package):
    code = """
from frcl.data import BENCHMARKS, BenchmarkOptions, open_benchmark
assert "half-planes" in BENCHMARKS
benchmark = open_benchmark("half-planes", BenchmarkOptions(tasks=3, train_on="train"), seed=0)
assert benchmark.task_names == ("0°", "45°", "90°")
task = benchmark.task(2)
assert (len(task.train), len(task.validation), len(task.test)) == (270, 30, 100)
assert bool(((task.test.x[:, 1] > 0).long() == task.test.y).all())
"""
    python(package, "-W", "error", "-c", code)


@pytest.mark.slow
def test_the_command_line_runs_the_benchmark_with_the_criterion(package):
    options = ["--selection", "farthest", "--tasks", "2", "--steps", "20", "--seeds", "1", "--set", "search_steps=20"]
    python(package, "-m", "frcl", "run", "half-planes", *options, "--quiet", "--out", "run")
    config = (package / "run" / "config.toml").read_text()
    assert 'selection = "farthest"' in config
    assert "widths = [32, 32]" in config
    assert "half-planes" in python(package, "-m", "frcl", "list")


@pytest.mark.slow
def test_the_command_line_runs_and_tunes_the_method(package):
    options = ["--method", "l2", "--tasks", "2", "--steps", "20", "--seeds", "2", "--set", "strength=0.5"]
    python(package, "-W", "error", "-m", "frcl", "run", "half-planes", *options, "--quiet", "--out", "l2")
    rows = list(csv.DictReader((package / "l2" / "log.csv").read_text().splitlines()))
    penalties = {task: [float(row["kl_past"]) for row in rows if row["task"] == task] for task in ("0", "1")}
    assert set(penalties["0"]) == {0.0}  # nothing to keep while the first task is learned
    assert penalties["1"][0] == 0.0  # the weights are where they began
    assert penalties["1"][-1] > 0.0
    tried = json.loads(python(package, "-m", "frcl", "tune", "l2", "half-planes", "--set", "steps=5", "--json"))
    assert sorted(trial["options"]["strength"] for trial in tried) == [1e-4, 1e-3, 1e-2]
