"""One learner trained by two processes over gloo, compared with one process; runs, errors, Ctrl-C and resuming."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import parallel_worker
from frcl import OptionError
from frcl.distributed import Processes, data_parallel, from_first, is_follower, on_its_own, processes
from frcl.experiment.results import read_result
from frcl.files import load_state
from frcl.trees import named_tensors

HERE = Path(__file__).parent
RUN = ["run", "split-digits", "--tasks", "2", "--points", "10", "--quiet"]


def environment(rank=None, size=2, port=0):
    own = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    if rank is not None:
        own |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return os.environ | own


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def start(arguments, size=2):
    """`size` processes that know of each other, as torchrun starts them; a list of them."""
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, *map(str, arguments)], env=environment(rank, size, port), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(size)
    ]  # fmt: skip


def ended(started):
    """Return code, output and error output of each."""
    try:
        each = [one.communicate(timeout=120) for one in started]
    finally:
        for one in started:
            one.kill()
    return [(one.returncode, *texts) for one, texts in zip(started, each, strict=True)]


@pytest.fixture(scope="module")
def by_two(tmp_path_factory):
    """What two processes found, by rank."""
    folder = tmp_path_factory.mktemp("two")
    for code, _, errors in ended(start([HERE / "parallel_worker.py", folder])):
        assert code == 0, errors
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.slow  # the processes are started once for all cases
@pytest.mark.parametrize("case", parallel_worker.CASES)
def test_two_processes_find_what_one_finds_with_the_joint_minibatch(by_two, case):
    """Minibatches of 7 are split into 4 and 3."""
    expected = dict(named_tensors({case: parallel_worker.learned(case)}))
    for found in by_two:
        own = {name: value for name, value in found.items() if name.startswith(f"{case}/")}
        assert own.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(own[name], value, rtol=1e-5, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.slow
def test_both_processes_hold_the_same_bits(by_two):
    first, second = by_two
    assert first.keys() == second.keys()
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_a_process_by_itself_trains_alone():
    with data_parallel() as group:
        assert (group.rank, group.size, group.is_first, processes()) == (0, 1, True, None)
        assert from_first(lambda: 3) == 3
        assert not is_follower()


def test_on_its_own_hides_the_others_and_gives_them_back():
    from frcl.distributed import _CURRENT

    group = Processes(1, 2)
    before = _CURRENT.set(group)
    try:
        with on_its_own():
            assert processes() is None
        assert processes() is group
    finally:
        _CURRENT.reset(before)


FAILING = """
import sys, torch, frcl
from frcl.distributed import data_parallel
from parallel_worker import examples, net

kind = sys.argv[1]
with data_parallel() as group:
    x, y = examples(0)
    if kind == "data" and group.rank == 1:
        x = x + 1
    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.calls = net(), 0

        def forward(self, x):
            self.calls += torch.is_grad_enabled()
            if kind == "network" and group.rank == 1 and self.calls > 4:
                raise RuntimeError("the disk is full")
            return self.inner(x)

    learner = frcl.FRCL(Network(), points=8, steps=20, batch_size=1 if kind == "batch" else 7)
    try:
        learner.fit(x, y)
    except Exception as error:
        print(type(error).__name__, learner.step, error, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("data", "TaskError 0 the processes are not about to learn the same", "TaskError 0 the processes are not"),
        ("network", "ProcessError 4 process 1 of 2 failed: the network failed", "NetworkError 4 the network failed"),
        ("batch", "DataError 0 a minibatch of 1 cannot be split", "ProcessError 0 process 0 of 2 failed: a minibatch"),
    ],
)
def test_what_cannot_be_split_is_refused_by_all(kind, first, second, tmp_path):
    (tmp_path / "failing.py").write_text(f"import sys\nsys.path.insert(0, {str(HERE)!r})\n{FAILING}")
    found = ended(start([tmp_path / "failing.py", kind]))
    assert [code for code, *_ in found] == [0, 0], found
    assert found[0][1].startswith(first)
    assert found[1][1].startswith(second)


def steps(number):
    return ["--set", f"steps={number}", "--set", "checkpoint_seconds=0"]


def check_equal(folder, other):
    """The same accuracies, losses, points and weights up to rounding."""
    (result, tensors), (expected, others) = (
        (read_result(one / "result.json"), load_state(one / "checkpoint.frcl")[1]) for one in (folder, other)
    )
    np.testing.assert_allclose(result.accuracy, expected.accuracy, atol=1e-5)
    np.testing.assert_allclose(result.agnostic, expected.agnostic, atol=1e-5)
    assert abs(result.nll.mean - expected.nll.mean) < 1e-5
    assert tensors.keys() == others.keys()
    for name, value in others.items():
        # as a whole: a single weight whose gradient is nearly zero gets rounding that Adam has scaled up
        gap = (tensors[name].double() - value.double()).norm()
        assert gap <= 1e-5 * (1 + value.double().norm()), name
    rows = [np.loadtxt(one / "log.csv", delimiter=",", skiprows=1) for one in (folder, other)]
    np.testing.assert_allclose(*rows, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_run_is_stopped_written_once_and_resumed_with_another_number_of_processes(tmp_path):
    """Two processes by torchrun, Ctrl-C; then three; then a comparison with one process from beginning to end."""
    one, two = tmp_path / "one", tmp_path / "two"
    # small steps, so that Adam scales up little of the rounding of weights whose gradients are nearly zero
    options = [*RUN, *steps(150), "--set", "lr=5e-5", "--out"]
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]
    started = subprocess.Popen(
        [sys.executable, *launch, "-m", "frcl", *options, two], env=environment(), start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    whole = subprocess.Popen([sys.executable, "-m", "frcl", *options, one], env=environment())
    until = time.monotonic() + 60
    while not (two / "checkpoint.frcl").exists() and time.monotonic() < until:
        time.sleep(0.02)
    os.killpg(started.pid, signal.SIGINT)
    _, errors = started.communicate(timeout=60)
    assert started.returncode != 0
    assert errors.count(f"stopped; go on with: frcl resume {two}") == 1, errors
    assert not (two / "result.json").exists()
    names = {path.name for path in two.iterdir()}
    assert names <= {"config.toml", "checkpoint.frcl", "log.csv", ".lock"}, names
    for code, output, errors in ended(start(["-m", "frcl", "resume", two, "--quiet"], 3)):
        assert (code, output) == (0, ""), errors
    assert whole.wait(60) == 0
    check_equal(two, one)
    assert {path.name for path in two.iterdir()} == {path.name for path in one.iterdir()}
    assert read_result(two / "result.json").environment["processes"] == "3"


@pytest.mark.slow
def test_several_methods_by_torchrun_print_once(tmp_path):
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}", "-m", "frcl"]
    options = [
        "run",
        "split-digits",
        "--method",
        "frcl,finetune",
        "--tasks",
        "2",
        "--points",
        "5",
        "--seeds",
        "1",
        "--steps",
        "8",
    ]
    found = subprocess.run(
        [sys.executable, *launch, *options, "--out", tmp_path / "two"],
        env=environment(),
        text=True,
        capture_output=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("frcl − finetune") == 1
    assert found.stderr.count("method finetune has no option points: skipped") == 1
    alone = subprocess.run(
        [sys.executable, "-m", "frcl", *options, "--quiet", "--out", tmp_path / "one"],
        env=environment(),
        text=True,
        check=False,
    )
    assert alone.returncode == 0
    for name in ("frcl", "finetune"):
        check_equal(tmp_path / "two" / name, tmp_path / "one" / name)


def test_other_commands_refuse_torchrun(monkeypatch, tmp_path):
    from frcl.cli.sweep import Place

    for name, value in environment(0).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(OptionError, match="torchrun is for frcl run"):
        Place().check()


@pytest.mark.slow
def test_an_error_of_the_first_process_ends_all_with_one_message(tmp_path):
    (tmp_path / "config.toml").write_text("")
    found = ended(start(["-m", "frcl", *RUN, "--out", tmp_path]))
    assert [code for code, *_ in found] == [2, 1], found
    assert found[0][2].startswith(f"error: {tmp_path} already holds a run")
    assert found[1][2].strip() == ""
