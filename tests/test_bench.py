"""The benchmark: its plain versions give the same values as ours; its tables, files and errors. Nothing is timed."""

import copy
import itertools
import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from frcl.bench import cpu, cuda, peers
from frcl.bench.direct import covariance_factors, direct_past_kl, direct_trace, plain_prediction, plain_training
from frcl.bench.measure import (
    Goal,
    Measurement,
    change_table,
    duration,
    in_turn,
    number,
    read_results,
    results_of,
    results_table,
    write_results,
)
from frcl.cli import main
from frcl.cli.bench import ONLY
from frcl.errors import OptionError
from frcl.experiment import environment
from frcl.experiment.config import resolve
from frcl.features import MLP
from frcl.selection.trace import trace_at
from frcl.summary import belief_from_weights, prior_kl, prior_kl_terms
from oracles import direct_prior_kl, rand_posterior
from oracles import direct_trace as oracle_trace

TINY = cpu.Sizes(
    inputs=9, widths=(4, 3), classes=3, examples=60, batch=6, points=7, past=2, few_past=1, many_past=3, steps=3,
    proposals=5, predicted=20, seeds=2, run_steps=2, run_proposals=3, threads=1,
)  # fmt: skip
CASES = {case.goal.name: case for case in cpu.CASES}


# -- the plain versions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("M", [3, 9])
def test_the_direct_kl_is_the_oracle_and_ours(M, generator):
    T, K, C = 3, 5, 2
    old, new = (torch.randn(T, M, K, generator=generator, dtype=torch.float64) for _ in range(2))
    beliefs = [belief_from_weights(rand_posterior(C, K, generator), Phi_z, 0.1) for Phi_z in old]
    Phi = new.requires_grad_()
    direct = direct_past_kl(Phi, beliefs, [covariance_factors(belief) for belief in beliefs])
    oracle = sum(direct_prior_kl(Phi_z, belief) for Phi_z, belief in zip(Phi, beliefs, strict=True))
    ours = prior_kl(Phi, prior_kl_terms(beliefs)).sum()
    gradients = [torch.autograd.grad(value, Phi)[0] for value in (direct, oracle, ours)]
    torch.testing.assert_close(direct, oracle)
    torch.testing.assert_close(direct, ours)
    torch.testing.assert_close(gradients[0], gradients[1])
    torch.testing.assert_close(gradients[0], gradients[2])


@pytest.mark.parametrize("M", [3, 9])
def test_the_direct_trace_is_the_oracle_and_ours(M, generator):
    Phi = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    index = torch.randperm(30, generator=generator)[:M]
    direct = float(direct_trace(Phi, index, 0.1))
    assert direct == pytest.approx(oracle_trace(Phi, index, 0.1), rel=1e-9)
    assert direct == pytest.approx(trace_at(Phi, index, 0.1), rel=1e-9)


def test_a_plain_step_is_a_step_of_adam_on_the_cross_entropy(generator):
    x, y = TINY.data()
    model = TINY.plain_model()
    twin = copy.deepcopy(model)
    only = torch.zeros(10, dtype=torch.long)  # one example, whatever is drawn
    plain_training(model, x[only], y[only], 4, 1e-3, generator)()
    (-torch.log_softmax(twin(x[:1]), 1)[0, y[0]]).backward()
    for new, old in zip(model.parameters(), twin.parameters(), strict=True):
        expected = old - 1e-3 * old.grad / (old.grad.abs() + 1e-8)  # Adam's first step
        torch.testing.assert_close(new, expected)


def test_a_plain_prediction_is_the_network_and_a_linear_layer():
    x, _ = TINY.data()
    model = TINY.plain_model()
    outputs = plain_prediction(model, x)
    torch.testing.assert_close(outputs, TINY.network()(x) @ model[-1].weight.mT + model[-1].bias)
    assert not outputs.requires_grad


# -- the measurements -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_every_case_is_measured_at_a_tiny_size(name, global_random_state_untouched):
    counted = []
    found = CASES[name].measure(TINY, 2, lambda: counted.append(name))
    assert found.goal.name == name
    assert len(found.values) == len(counted) == 2
    assert {side: len(times) for side, times in found.seconds.items()} == {"ours": 2, "other": 2}
    assert min(*found.values, *found.seconds["ours"], *found.seconds["other"]) > 0
    assert found.how


def test_the_sides_take_turns_and_a_ratio_is_of_neighbours():
    order = []
    ours, other = itertools.count(1), itertools.count(10, 10)

    def side(name, times):
        def timed():
            order.append(name)
            return float(next(times))

        return timed

    sides = {"ours": side("ours", ours), "other": side("other", other)}
    times = in_turn(sides, 3, lambda: order.append("counted"))
    found = Goal("a", "", 5, at_least=True).measured(times, "")
    assert order == ["ours", "other", "counted"] * 3
    assert found.values == [10.0, 10.0, 10.0]
    assert found.is_met
    slower = Goal("a", "", 5).measured(in_turn({"ours": lambda: 6.0, "other": lambda: 1.0}, 1, lambda: None), "")
    assert slower.values == [6.0]
    assert not slower.is_met


def test_steps_of_the_engine_are_really_taken():
    x, y = TINY.data()
    learner = cpu.learner_of(TINY, 2, x, y)
    before = {name: p.detach().clone() for name, p in learner.net.named_parameters()}
    taken = list(itertools.islice(cpu.endless_steps(learner, x, y), 4))
    assert (len(taken), learner.step, len(learner.tasks)) == (4, 4, 2)
    assert all(terms[0][0][3] > 0 for terms in taken), "the past is looked at"
    assert not all(torch.equal(before[name], p) for name, p in learner.net.named_parameters())


@pytest.mark.parametrize("method", cpu.BASELINES)
def test_the_steps_of_a_baseline_have_a_past(method):
    learner = cpu.baseline(TINY, method, *TINY.data(), past=1)
    assert len(learner._state.past) == 1
    assert learner.options.batch_size == TINY.batch
    before = learner.step
    taken = list(itertools.islice(cpu.endless_steps(learner, *TINY.data()), 3))
    assert (len(taken), learner.step) == (3, 3)
    assert before != learner.step


def test_quartiles_and_counts():
    one = Measurement(Goal("a", "", 1), [5.0, 1.0, 2.0, 3.0, 4.0])
    assert one.quartiles == (2.0, 3.0, 4.0)
    assert Measurement(Goal("a", "", 1), [2.0]).quartiles == (2.0, 2.0, 2.0)
    cases = list(CASES.values())
    assert [case.count(None, quick=False) for case in cases] == [case.repeats for case in cases]
    assert [case.count(None, quick=True) for case in cases] == [case.quick for case in cases]
    assert [case.count(2, quick=True) for case in cases] == [2] * len(cases)


def test_the_operators_of_a_step():
    found = cpu.profile_step(TINY)
    counts = {one.key: one.count for one in found}
    assert counts["aten::_fused_adam_"] == TINY.steps
    lines = found.table(sort_by="self_cpu_time_total", row_limit=5).splitlines()
    shares = [float(line.split()[1].rstrip("%")) for line in lines if line.lstrip().startswith("aten::")]
    assert shares
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 100


# -- whole runs -----------------------------------------------------------------------------------------------


def tiny_runs(goals, device="cpu", data=None):
    """The runs of these goals, small, of scikit-learn's digits and on the CPU."""
    tiny = {"learner": {"steps": 2, "points": 5, "search_steps": 3}, "stream": {"tasks": 2}}
    names = dict.fromkeys(name for goal in goals for name in cuda.GOALS[goal])
    return {name: resolve("split-digits", {"seeds": [0] if "one" in name else [0, 1], **tiny}) for name in names}


def test_whole_runs_give_seconds_a_ratio_and_the_accuracy():
    goals = [goal for goal in cuda.GOALS if goal.name != "omniglot"]
    counted = []
    split, permuted, ratio = cuda.measure_runs(goals, tiny_runs(goals), 2, lambda: counted.append(1))
    assert len(counted) == 6
    assert (split.goal.unit, len(split.values)) == ("s", 2)
    np.testing.assert_allclose(ratio.values, np.divide(permuted.values, ratio.seconds["other"]))
    assert "average accuracy" in split.how
    assert min(split.values) > 0


def test_the_runs_have_the_settings_of_the_paper(tmp_path):
    made = cuda.configurations(list(cuda.GOALS), "cuda", tmp_path)
    assert list(made) == list(cuda.RUNS)
    split, permuted, one, omniglot = made.values()
    assert all((run.device, run.data, run.method) == ("cuda", str(tmp_path), "frcl") for run in made.values())
    assert [len(run.seeds) for run in made.values()] == [10, 10, 1, 5]
    assert (split.learner.points, split.learner.steps, split.network.widths) == (40, 3000, (256, 256))
    assert (permuted.learner.points, permuted.learner.steps, permuted.network.widths) == (200, 2000, (100, 100))
    assert replace(permuted, seeds=(0,)) == one
    assert (omniglot.learner.points_per_class, omniglot.learner.steps) == (2, 2500)
    only = [goal for goal in cuda.GOALS if goal.name == "ten-to-one"]
    assert list(cuda.configurations(only, "cuda", None)) == ["permuted-mnist", "permuted-mnist, one seed"]


# -- tables and files -----------------------------------------------------------------------------------------

TIMES = {"ours": [1e-3], "other": [7e-3]}
FAST = Measurement(Goal("fast", "some thing", 5, at_least=True), [6.0, 7.0, 8.0], TIMES, "x")
SLOW = Measurement(Goal("slow", "another", 10, unit="s"), [12.0], {"ours": [12.0]}, "average accuracy 97 %")


def shown(thing) -> list[str]:
    """The lines of a table, with single spaces."""
    console = Console(width=120)
    with console.capture() as captured:
        console.print(thing)
    return [" ".join(line.split()) for line in captured.get().splitlines()]


def test_the_table_says_what_is_met_and_what_is_missed():
    lines = shown(results_table([FAST, SLOW]))
    assert "fast 7 × 6.5–7.5 ≥ 5 × met 1 ms 7 ms" in lines
    assert "slow 12 s ≤ 10 s missed 12 s average accuracy 97 %" in lines


def test_numbers_and_durations():
    assert [number(value) for value in (0.5432, 12.345, 833.4)] == ["0.543", "12.3", "833"]
    assert [duration(value) for value in (2.5, 0.0123, 4.2e-5)] == ["2.5 s", "12.3 ms", "42 µs"]


def test_results_are_written_and_read_back(tmp_path):
    path = tmp_path / "bench.json"
    write_results(path, results_of([FAST, SLOW], "cpu", 2))
    results = read_results(path)
    assert results.measurements == [FAST, SLOW]
    assert (results.threads, results.device) == (2, "cpu")
    assert results.environment["torch"] == torch.__version__
    assert [one.is_met for one in results.measurements] == [True, False]
    assert results.measurements[0].quartiles == (6.5, 7.0, 7.5)
    assert [file.name for file in tmp_path.iterdir()] == ["bench.json"]


def test_two_results_side_by_side():
    faster = replace(FAST, values=[14.0])
    lines = shown(change_table(results_of([FAST, SLOW], "cpu", 2), results_of([faster], "cpu", 2)))
    assert "fast 7 × 14 × +100.0 %" in lines
    assert "slow 12 s not measured" in lines


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "it is not JSON"),
        ("[]", "was not written by frcl"),
        ('{"accuracy": 1}', "was not written by frcl"),
        ('{"format": "frcl-bench", "version": 99}', "format version 99"),
        ('{"format": "frcl-bench", "version": 1}', "damaged"),
    ],
)
def test_other_files_are_refused(tmp_path, text, message):
    path = tmp_path / "old.json"
    path.write_text(text)
    with pytest.raises(OptionError, match=message):
        read_results(path)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(OptionError, match="cannot read"):
        read_results(tmp_path / "absent.json")


# -- the command ----------------------------------------------------------------------------------------------


@pytest.fixture
def frcl(tmp_path, monkeypatch, capsys):
    """`frcl bench` in a fresh folder, at a tiny size, with two cases of which the second is always missed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    never = replace(CASES["prediction"], goal=Goal("never", "what cannot be", 0.0), quick=1, repeats=2)
    always = replace(CASES["past-kl"], goal=Goal("always", "what is always so", 1e9), quick=1, repeats=2)
    monkeypatch.setattr(cpu, "CASES", (always, never))
    monkeypatch.setattr(cpu, "Sizes", lambda threads: replace(TINY, threads=threads))

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["frcl", "bench", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, int(end.value.code or 0), captured.out, captured.err)

    return call


def test_bench_prints_a_table_and_writes_json(frcl, tmp_path):
    result = frcl("--threads", "1")
    assert result.returncode == 0, result.stderr
    assert "always: what is always so; 2 tasks × 7 points, 4 features, 3 classes" in result.stdout
    assert "missed" in result.stdout
    assert result.stderr == ""
    results = json.loads((tmp_path / "bench.json").read_text())
    assert [(one["goal"]["name"], len(one["values"])) for one in results["measurements"]] == [
        ("always", 2),
        ("never", 2),
    ]
    assert (results["threads"], results["environment"]["threads"]) == (1, "1")


def test_strict_is_for_machines(frcl):
    assert frcl("--quick", "--strict").returncode == 1
    assert frcl("--quick", "--strict", "--only", "always").returncode == 0


def test_against_an_earlier_result(frcl, tmp_path):
    assert frcl("--only", "always", "--repeat", "1", "--out", "old.json").returncode == 0
    result = frcl("--quick", "--against", "old.json")
    assert result.returncode == 0, result.stderr
    assert "change" in result.stdout
    assert "not measured" in result.stdout
    assert len(json.loads((tmp_path / "old.json").read_text())["measurements"][0]["values"]) == 1


def test_profile_prints_operators_and_writes_nothing(frcl, tmp_path):
    result = frcl("--profile")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("aten::") >= 10
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "alwys"), "--only 'alwys' is unknown; did you mean 'always'"),
        (("--against", "absent.json"), "cannot read absent.json"),
        (("--out", "absent/bench.json"), "there is no folder"),
        (("--omniglot",), "are for --device cuda"),
        (("--device", "tpux"), "unknown device 'tpux'"),
        (("--device", "cpu:0"), "--device is cpu or cuda"),
        (("--device", "cuda", "--quick"), "are for --device cpu"),
        (("--device", "cuda", "--peers"), "are for --device cpu"),
        (("--peers", "--only", "always"), "--only 'always' is unknown"),
    ],
)
def test_mistakes_are_noticed_before_anything_is_measured(frcl, tmp_path, arguments, message):
    result = frcl(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ((), ["split-mnist", "permuted-mnist", "ten-to-one"]),
        (("--omniglot",), ["split-mnist", "permuted-mnist", "ten-to-one", "omniglot"]),
        (("--only", "ten-to-one"), ["ten-to-one"]),
    ],
)
def test_on_cuda_whole_runs_are_timed(frcl, tmp_path, monkeypatch, flags, names):
    monkeypatch.setattr(environment, "check_device", torch.device)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    monkeypatch.setattr(cuda, "configurations", tiny_runs)
    result = frcl("--device", "cuda", *flags)
    assert result.returncode == 0, result.stderr
    assert "cuda (a card)" in result.stdout
    assert "average accuracy" in result.stdout
    written = json.loads((tmp_path / "bench.json").read_text())
    assert [one["goal"]["name"] for one in written["measurements"]] == names
    assert (written["device"], written["threads"]) == ("cuda", 1)


def test_peers_need_avalanche(frcl, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "avalanche", None)
    monkeypatch.setitem(sys.modules, "avalanche.benchmarks", None)
    result = frcl("--peers", "--only", "ewc-peer", "--repeat", "1")
    assert result.returncode == 2
    assert "pip install 'frcl[avalanche]'" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_there_is_nothing_to_measure_on_it(frcl):
    result = frcl("--device", "cuda")
    assert result.returncode == 2
    assert "finds no CUDA device" in result.stderr


def test_the_help_names_every_measure():
    methods = {f"{name}-step" for name in cpu.BASELINES} | {case.goal.name for case in peers.CASES}

    def names(goals):
        return ", ".join(dict.fromkeys(re.sub(r".*-", "METHOD-", n) if n in methods else n for n in goals))

    steps, beside = (names(case.goal.name for case in module.CASES) for module in (cpu, peers))
    whole = names(goal.name for goal in cuda.GOALS)
    told = f"Only this; may be repeated. cpu: {steps}; with --peers: {beside}. cuda: {whole}."
    assert " ".join(ONLY.split()) == told


@pytest.mark.slow
def test_the_command_line_does_not_load_the_benchmark():
    code = "import frcl.cli, sys; print([name for name in sys.modules if name.startswith('frcl.bench.')])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


def test_the_network_is_that_of_the_paper():
    size = cpu.Sizes()
    assert isinstance(size.network(), MLP)
    assert (size.features, size.points, size.past, size.batch) == (101, 200, 9, 128)
    assert size.names() == "784-100-100, batch 128, 10 classes"
