"""The command line as a person or a program meets it: output, errors of one line, exit codes."""

import io
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from frcl.cli import console, main

TINY = ("--steps", "15", "--seeds", "1", "--tasks", "2", "--set", "network.widths=[8]", "--set", "search_steps=10")


def frcl(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "140", "FRCL_MIRRORS": "", **environment}
    variables.pop("FRCL_DATA", None)
    variables |= environment
    return subprocess.run(
        [sys.executable, "-m", "frcl", *arguments],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("cli")
    return folder, frcl("run", *TINY, "--out", "first", folder=folder)


@pytest.fixture
def inside(done, monkeypatch, capsys):
    """The command line in this process: as `frcl`, without the time that starting Python takes."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(done[0])
        monkeypatch.setenv("COLUMNS", "140")
        monkeypatch.setenv("FRCL_MIRRORS", "")
        monkeypatch.setenv("XDG_CACHE_HOME", str(done[0] / "cache"))
        monkeypatch.delenv("FRCL_DATA", raising=False)
        monkeypatch.setattr(sys, "argv", ["frcl", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, int(end.value.code or 0), captured.out, captured.err)

    return call


def test_run_says_what_it_found_and_where(done):
    folder, result = done
    assert result.returncode == 0, result.stderr
    assert "average accuracy" in result.stdout
    assert "after learning" in result.stdout
    assert f"report: {Path('first') / 'report.html'}" in result.stdout
    written = {path.name for path in (folder / "first").iterdir()}
    assert {"config.toml", "result.json", "report.html", "figures", "tables", "checkpoint.frcl", "log.csv"} <= written
    assert "\x1b" not in result.stdout, "plain lines where there is no terminal"


@pytest.mark.slow
def test_json_is_for_machines(done, inside):
    folder, _ = done
    result = frcl("run", *TINY, "--out", "second", "--json", folder=folder)
    assert result.returncode == 0
    assert json.loads(result.stdout)["benchmark"] == "split-digits"
    assert result.stderr == ""
    quiet = inside("run", *TINY, "--out", "third", "--quiet")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


def test_dry_run_prints_the_resolved_options(done, inside):
    result = inside("run", "permuted-digits", "--points", "7", "--set", "u_noise=0.5", "--dry-run")
    assert result.returncode == 0
    config = tomllib.loads(result.stdout)
    assert (config["learner"]["points"], config["learner"]["u_noise"]) == (7, 0.5)
    again = done[0] / "options.toml"
    again.write_text(result.stdout)
    assert inside("run", "--config", str(again), "--dry-run").stdout == result.stdout


def test_dry_run_checks_files_device_and_folder(done, inside):
    before = sorted(done[0].rglob("*"))
    result = inside("run", "permuted-mnist", "--dry-run")
    assert (result.returncode, tomllib.loads(result.stdout)["benchmark"]) == (1, "permuted-mnist")
    assert "train-images-idx3-ubyte" in result.stderr
    (done[0] / "own.toml").write_text('name = "own"\nfolder = "no-such-folder"\n')
    mistakes = {
        ("own.toml",): "no-such-folder", ("--device", "cuda:9"): "cuda", ("--out", "first"): "already holds a run",
        ("--set", "network.kind=resnet18"): "needs square images", ("--set", "lrr=1"): "did you mean 'lr'",
    }  # fmt: skip
    for arguments, message in mistakes.items():
        result = inside("run", *arguments, "--dry-run")
        assert result.returncode in (1, 2)
        assert message in result.stderr
    (done[0] / "own.toml").unlink()
    assert sorted(done[0].rglob("*")) == before, "nothing is written"


@pytest.mark.slow
def test_several_methods_and_the_options_that_not_all_of_them_have(done, inside):
    folder, _ = done
    arguments = ("run", *TINY, "--method", "frcl,ewc", "--points", "4", "--set", "strength=3.0", "--out", "several")
    result = inside(*arguments)
    assert result.returncode == 0, result.stderr
    notes = result.stderr.splitlines()
    assert notes[0] == "note: method frcl has no option strength: skipped"
    assert notes[1] == "note: method ewc has no option points, search_steps: skipped"
    read = {name: json.loads((folder / "several" / name / "result.json").read_text()) for name in ("frcl", "ewc")}
    assert (read["frcl"]["config"]["learner"]["points"], read["ewc"]["config"]["learner"]["strength"]) == (4, 3.0)
    assert "frcl − ewc" in result.stdout
    alone = inside("run", *TINY[:-2], "--method", "ewc", "--points", "4", "--dry-run")
    assert (alone.returncode, alone.stderr) == (0, "note: method ewc has no option points: skipped\n")
    typed = inside(*arguments[:-1], "typed", "--set", "strenght=3.0")
    assert (typed.returncode, (folder / "typed").exists()) == (2, False)
    assert "did you mean 'strength'" in typed.stderr or "option 'strenght' is unknown" in typed.stderr
    assert "names a method twice" in inside("run", "--method", "ewc,ewc").stderr


def test_version(inside):
    import frcl

    assert inside("--version").stdout == f"frcl {frcl.__version__}\n"


def test_compare_is_readable_in_80_columns_and_in_a_pipe(done, inside, monkeypatch):
    folder, _ = done
    names = ["first", "longer-than-most"]
    source = json.loads((folder / "first" / "result.json").read_text())
    (folder / names[1]).mkdir()
    source["config"]["learner"] |= {"lr": 0.12345, "u_noise": 0.5, "batch_size": 77}
    (folder / names[1] / "result.json").write_text(json.dumps(source))
    pipe = inside("compare", *names).stdout
    assert "…" not in pipe
    assert "─" not in pipe, "no frames"
    scores, _, rest = pipe.partition("Task inferred %")
    shown, inferred = (f"{100 * source[key]['mean']:.2f}" for key in ("average_accuracy", "task_accuracy"))
    assert sum(shown in line.split() for line in scores.splitlines()) == 2
    assert sum(inferred in line.split() for line in rest.splitlines()) == 2
    assert f"{source['nll']['mean']:.4f}" in pipe
    assert pipe.count("Difference in average accuracy") == 1
    assert sum("frcl (first) − frcl (longer-than-most)" in line for line in pipe.splitlines()) == 1

    screen = Console(width=80, force_terminal=True, file=io.StringIO(), color_system=None)
    monkeypatch.setattr(console, "out", screen)
    inside("compare", *names)
    lines = screen.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    for word in (shown, f"{source['nll']['mean']:.4f}", "Forgetting pp", "95 % interval", "Time"):
        assert any(word in line for line in lines), word


def test_runs_whose_names_begin_alike_can_be_told_apart(done, inside, monkeypatch):
    folder, _ = done
    names = [f"split-digits-frcl-with-a-longer-name-{end}" for end in ("one", "two", "three")]
    for name in names:
        (folder / name).mkdir()
        (folder / name / "result.json").write_bytes((folder / "first" / "result.json").read_bytes())
    screen = Console(width=80, force_terminal=True, file=io.StringIO(), color_system=None)
    monkeypatch.setattr(console, "out", screen)
    inside("compare", *names)
    lines = screen.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    tables = "".join(line[1:].partition("│")[0].strip() for line in lines if line.startswith("│"))
    for name in names:
        assert tables.count(f"({name})") == 3 + 2, "each table of scores, and two pairs"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("run --method f", {"frcl", "frcl-plus", "finetune", "fromp"}),
        ("run --method frcl,ew", {"frcl,ewc"}),
        ("run split-d", {"split-digits"}),
        ("run --method ewc --set stre", {"strength="}),
        ("run --method ewc --set learner.str", {"learner.strength="}),
        ("run --method ewc --set fisher=", {"fisher=exact", "fisher=sampled", "fisher=empirical"}),
        ("run --set forward_transfer=t", {"forward_transfer=true"}),
        ("run --set devi", {"device="}),
        ("run --selection tr", {"trace"}),
        ("run --scenario c", {"class"}),
        ("tune online", {"online-ewc"}),
        ("tune ewc permuted-d", {"permuted-digits"}),
        ("tune ewc split-digits --try stren", {"strength="}),
        ("tune ewc split-digits --by e", {"ece"}),
        ("list pn", {"pnc"}),
        ("data o", {"omniglot"}),
        ("data mni", {"mnist"}),
        ("comp", {"compare"}),
    ],
)
def test_a_shell_completes_words(inside, monkeypatch, words, expected):
    """As bash calls it; --show-completion prints the function that does."""
    monkeypatch.setenv("_FRCL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"frcl {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    assert set(inside().stdout.split()) == expected


def test_report_and_compare(done, inside):
    folder, _ = done
    inside("run", *TINY, "--points", "3", "--out", "fewer", "--quiet")
    result = inside("report", "first", "fewer", "--out", "both.html")
    assert result.returncode == 0, result.stderr
    assert (folder / "both.html").read_text().lower().startswith("<!doctype html>")
    table = inside("compare", "first", "fewer")
    assert table.returncode == 0, table.stderr
    assert "paired seeds" in table.stdout
    assert len(json.loads(inside("compare", "first", "fewer", "--json").stdout)["rows"]) == 2


def test_list_data_and_help(inside, done):
    names = inside("list").stdout
    for name in ("split-digits", "permuted-digits", "split-mnist", "permuted-mnist", "omniglot", "frcl"):
        assert name in names
    status = inside("data", "--data", str(done[0]))
    assert status.returncode == 0, status.stderr
    assert "train-images-idx3-ubyte" in status.stdout
    for command in ("run", "resume", "report", "compare", "list", "data"):
        page = inside(command, "--help")
        assert page.returncode == 0
        assert f"Usage: frcl {command}" in page.stdout


def test_your_own_data(done, inside):
    folder, _ = done
    (folder / "mine").mkdir()
    g = np.random.default_rng(0)
    for name in ("one", "two"):
        y = np.arange(80) % 2
        np.savez(folder / "mine" / f"{name}.npz", x=g.normal(size=(80, 3)) + 3 * y[:, None], y=y)
    (folder / "mine.toml").write_text('name = "mine"\nfolder = "mine"\n')
    result = inside("run", "mine.toml", "--steps", "60", "--points", "5", "--seeds", "1", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["tasks"] == ["one", "two"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("run", "splt-digits"), 2, "did you mean 'split-digits'"),
        (("run", "nonsense", "--dry-run"), 2, "there is no benchmark 'nonsense'"),
        (("run", "--method", "ewc", "--set", "points=3"), 2, "option 'points' is unknown"),
        (("run", "--method", "ewc", "--hidden-boundaries"), 2, "hidden boundaries are for method frcl"),
        (("run", "--method", "frlc"), 2, "unknown method 'frlc'; did you mean 'frcl'"),
        (("run", "--set", "u_nois=1"), 2, "option 'u_nois' is unknown; did you mean 'u_noise'"),
        (("run", "--set", "noise"), 2, "--set wants key=value"),
        (("run", "--set", "u_noise=-1"), 2, "u_noise must be a positive number"),
        (("run", "--points", "0"), 2, "points must be a whole number"),
        (("run", "--points", "9999", "--tasks", "2"), 1, "fewer than the 9999 inducing points"),
        (("run", "--set", "seeds=3"), 2, "seeds must be whole numbers of at least 0, at least one, not 3"),
        (("run", "--set", "network.widths=5"), 2, "widths must be whole numbers of at least 1, at least one, not 5"),
        (("run", "--set", 'thresholds=["a"]'), 2, "thresholds must be finite numbers, at least one, not ('a',)"),
        (("run", "--set", "data=3"), 2, "data must be text or None, not 3"),
        (("run", "--set", "method=3"), 2, "method is the name of a method"),
        (("run", "--set", "seed=5"), 2, "set seeds"),
        (("run", "--device", "meta"), 2, "unknown device 'meta'"),
        (("run", "--seeds", "x"), 2, "--seeds wants a number"),
        (("run", "--seeds", "0"), 2, "--seeds must be at least 1"),
        (("run", "--selection", "best"), 2, "selection='best' is unknown; choose one of random, trace"),
        (("run", "--device", "tpux"), 2, "unknown device 'tpux'; use cpu, cuda"),
        (("run", "--config", "absent.toml"), 2, "cannot read absent.toml"),
        (("run", "absent.toml"), (1, 2), "absent.toml"),
        (("run", "--data", "absent"), 1, "does not exist"),
        (("run", "split-mnist"), 1, "train-images-idx3-ubyte"),
        (("run", "omniglot"), 1, "omniglot"),
        (("resume", "absent"), 1, "holds no run"),
        (("report", "absent"), (1, 2), "absent"),
        (("compare", "absent"), (1, 2), "absent"),
        (("data", "imagenet"), 2, "there is no data set 'imagenet'"),
        (("run", "--out", "first"), 2, "already holds a run"),
    ],
)
def test_mistakes_end_in_one_line_and_a_code(done, arguments, code, message, inside):
    result = inside(*arguments)
    assert result.returncode in (code if isinstance(code, tuple) else (code,)), result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("arguments", [("run", "--nonsense"), ("walk",), ("resume",)])
def test_wrong_usage_is_code_2(arguments, inside):
    result = inside(*arguments)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(done):
    folder, _ = done
    command = [
        sys.executable,
        "-m",
        "frcl",
        "run",
        "--steps",
        "300",
        "--seeds",
        "1",
        "--tasks",
        "2",
        "--out",
        "stopped",
    ]
    whole = frcl("run", *command[4:-1], "whole", "--json", folder=folder)
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    while not (folder / "stopped" / "log.csv").exists():
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "go on with: frcl resume stopped" in stderr
    assert "Traceback" not in stderr
    resumed = frcl("resume", "stopped", "--json", folder=folder)
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["accuracy"] == json.loads(whole.stdout)["accuracy"]


@pytest.mark.slow
def test_live_display_in_a_terminal(done):
    """Under a pseudo-terminal the display is live and ends with the same table."""
    import pty

    folder, _ = done
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "frcl", "run", *TINY, "--steps", "300", "--out", "terminal"],
        cwd=folder, env={**os.environ, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1"},
        stdout=follower, stderr=follower,
    )  # fmt: skip
    os.close(follower)
    output = b""
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:
            break
        if not chunk:
            break
        output += chunk
    assert process.wait() == 0
    text = output.decode(errors="replace")
    assert "\x1b[" in text
    assert "task 2/2" in text
    assert "average accuracy" in text


@pytest.mark.slow
def test_shell_completion(done):
    folder, _ = done
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # not the shell that the tests were started from
    result = frcl("--show-completion", "bash", folder=folder, **named)
    assert result.returncode == 0
    assert "complete" in result.stdout


@pytest.mark.slow
def test_tensorboard_is_an_extra(done, inside):
    folder, _ = done
    result = inside("run", *TINY, "--out", "board", "--tensorboard", "--quiet")
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        assert result.returncode == 2
        assert "pip install 'frcl[tensorboard]'" in result.stderr
    else:
        assert result.returncode == 0
        assert list((folder / "board" / "tensorboard" / "seed-0").glob("events*"))
