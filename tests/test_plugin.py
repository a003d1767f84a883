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
learner = frcl.FRCL(frcl.MLP(2, (32, 32)).double(), points=8, steps=60, lr=1e-2, likelihood="ordinal",
                    selection="spread", current_inputs=1.0, curvature=1.0)
for number in range(2):
    task = benchmark.task(number)
    x = task.train.x.double()
    grades = torch.bucketize(x.norm(dim=1), torch.tensor([0.4, 0.6, 0.8]).double()) + 1
    summary = learner.fit(x, grades)
with torch.no_grad():
    distance = torch.pdist(learner.feature_scale * learner.net(summary.Z)).min()
torch.testing.assert_close(-summary.after, float(distance))
p = learner.predict(x, task=1)
assert p.classes == (1, 2, 3, 4)
assert p.mean.shape == (len(x), 1)
assert torch.corrcoef(torch.stack([p.mean[:, 0], grades.double()]))[0, 1] > 0.5

from torch.distributions import Categorical, Normal, kl_divergence
close, likelihood, f = torch.testing.assert_close, learner.likelihood(1), torch.linspace(-6, 6, 25).double()[:, None]

def table(f):  # p(class | f) as differences of distribution functions
    below = torch.sigmoid(torch.tensor([-torch.inf, -2.0, 0.0, 2.0, torch.inf]).double() - f)
    return below[:, 1:] - below[:, :-1]

for c in range(4):
    close(likelihood.log_prob(f, torch.full((25,), c), {}), table(f)[:, c].log())
expected = kl_divergence(Categorical(table(f)), Categorical(table(f.flip(0))))
close(likelihood.divergence(f, f.flip(0), torch.ones(1, 1), {}), expected)
values, weights = likelihood.fisher_terms(f, {})
close((values, weights), (table(f).log(), table(f)))
drawn = likelihood.sample(torch.ones(20000, 1).double(), {}, torch.Generator().manual_seed(0))
close(drawn.bincount(minlength=4) / 20000, table(torch.ones(1, 1).double())[0].float(), atol=0.01, rtol=0)
mean, variance = torch.tensor([[0.7]]).double(), torch.tensor([[1.9]]).double()
line = torch.linspace(-14, 15, 20001, dtype=torch.float64)
weight = Normal(mean[0], variance[0].sqrt()).log_prob(line).exp() * (line[1] - line[0])
none = torch.empty(0)
close(likelihood.probabilities(mean, variance, none)[0], weight @ table(line[:, None]))
log_p = table(line.clamp(-12, 12)[:, None]).log()
close(likelihood.expected_log_prob(mean, variance, torch.tensor([2]), none, {})[0], weight @ log_p[:, 2])
two = type(likelihood)((0, 1))  # with two classes it is the logistic likelihood
close(two.log_prob(f, torch.ones(25).long(), {}), torch.nn.functional.logsigmoid(f[:, 0]))

learner.save("ordinal.frcl")
loaded = frcl.load("ordinal.frcl", frcl.MLP(2, (32, 32)).double())
assert torch.equal(loaded.predict(x, task=1).probs, p.probs)
"""
    python(installed, tmp_path, "-W", "error", "-c", code)


@pytest.mark.slow
def test_the_command_line_runs_the_benchmark(installed, tmp_path):
    options = ["--tasks", "2", "--steps", "30", "--seeds", "1", "--set", "likelihood=ordinal", "--selection", "spread"]
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
