"""Another package extends frcl through entry points: the example package is installed and used."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PLUGIN = ROOT / "examples" / "frcl_plugin"

pytest.importorskip("setuptools", reason="builds the example package")


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> dict[str, str]:
    """The environment of a process that has the example package; it is installed offline into a temporary folder."""
    folder, copy = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("source")
    for path in PLUGIN.iterdir():  # setuptools writes beside the sources
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run(
        [*command, "--disable-pip-version-check", "--target", str(folder), str(copy)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(folder)]), "OMP_NUM_THREADS": "1"}


def python(environment: dict[str, str], folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_learner_uses_the_likelihood_and_the_criterion(installed, tmp_path):
    code = """
import torch, frcl
from frcl.data import open_benchmark
benchmark = open_benchmark("spirals", seed=0)
learner = frcl.FRCL(frcl.MLP(2, (32, 32)).double(), points=8, steps=30, likelihood="probit", selection="spread",
                    current_inputs=1.0, curvature=1.0)
for number in range(2):
    task = benchmark.task(number)
    summary = learner.fit(task.train.x.double(), task.train.y)
with torch.no_grad():
    distance = torch.pdist(learner.feature_scale * learner.net(summary.Z)).min()
torch.testing.assert_close(-summary.after, float(distance))
p = learner.predict(task.test.x.double(), task=1)
torch.testing.assert_close(p.probs[:, 1], torch.special.ndtr(p.mean[:, 0] / (1 + p.variance[:, 0]).sqrt()))
from torch.distributions import Bernoulli, kl_divergence
likelihood, f = learner.likelihood(1), torch.linspace(-3, 3, 7).double()[:, None]
cdf, one = torch.special.ndtr, torch.ones(7, dtype=torch.long)
torch.testing.assert_close(likelihood.log_prob(f, one, {}), torch.special.log_ndtr(f[:, 0]))
expected = kl_divergence(Bernoulli(cdf(f)), Bernoulli(cdf(f.flip(0))))[:, 0]
torch.testing.assert_close(likelihood.divergence(f, f.flip(0), torch.ones(1, 1), {}), expected)
density = torch.exp(-0.5 * f.square()) / (2 * torch.pi) ** 0.5
torch.testing.assert_close(likelihood.fisher_terms(f, {})[1], density.square() / (cdf(f) * cdf(-f)))
learner.save("probit.frcl")
loaded = frcl.load("probit.frcl", frcl.MLP(2, (32, 32)).double())
assert torch.equal(loaded.predict(task.test.x.double(), task=1).probs, p.probs)
"""
    python(installed, tmp_path, "-W", "error", "-c", code)


@pytest.mark.slow
def test_the_command_line_runs_the_benchmark(installed, tmp_path):
    options = ["--tasks", "2", "--steps", "30", "--seeds", "1", "--set", "likelihood=probit", "--selection", "spread"]
    python(installed, tmp_path, "-m", "frcl", "run", "spirals", *options, "--quiet", "--out", "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["tasks"] == ["0°", "30°"]
    assert result["config"]["network"]["widths"] == [64, 64]
    assert "spirals" in python(installed, tmp_path, "-m", "frcl", "list")


@pytest.mark.slow
def test_the_command_line_runs_the_method(installed, tmp_path):
    options = ["--method", "l1", "--tasks", "2", "--steps", "20", "--seeds", "1", "--set", "strength=0.01"]
    python(installed, tmp_path, "-m", "frcl", "run", "spirals", *options, "--quiet", "--out", "run")
    rows = list(csv.DictReader((tmp_path / "run" / "log.csv").read_text().splitlines()))
    assert {float(row["kl_past"]) for row in rows if row["task"] == "0"} == {0.0}
    assert float(rows[-1]["kl_past"]) > 0.0
    code = """
import frcl
from frcl.regularisers import REGULARISERS, FunctionalKL
x = __import__("torch").randn(50, 2)
learner = frcl.FRCL(frcl.MLP(2, (8,)), points=4, steps=5, regularisers=[FunctionalKL(), REGULARISERS["l1"](0.1)])
learner.fit(x, (x[:, 0] > 0).long())
learner.save("l1.frcl")
"""
    python(installed, tmp_path, "-c", code)
    load = "import frcl; print(frcl.load('l1.frcl', frcl.MLP(2, (8,))).regularisers[1])"
    assert "L1(weight=0.1)" in python(installed, tmp_path, "-c", load)


@pytest.mark.slow
def test_without_the_package_its_names_are_refused(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    code = "import frcl; frcl.FRCL(frcl.MLP(2), selection='spread')"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert "selection='spread' is unknown" in done.stderr
