"""The folder of a run: its lock, left-over files, damaged files, and `frcl check`."""

import errno
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from disk import Disk
from frcl import CheckpointError, DataError, FrclError, OptionError
from frcl.cli import main
from frcl.experiment import runner
from frcl.experiment.config import parse_setting, read_toml, resolve
from frcl.experiment.keeper import CHECKPOINT, Interrupted, Observer, Written
from frcl.files import alone_in, load_state, read_arrays, save_state, sweep, write_at, write_atomically
from frcl.report import comparison_rows, find_runs, write_report
from test_power_cut import CONFIG

FILES = ("config.toml", CHECKPOINT, "log.csv", "kl_past.csv", "points.npz", "result.json")
SOURCE = str(Path(__file__).parents[1] / "src")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    runner.run(CONFIG, folder, Observer())
    return folder


@pytest.fixture
def run(finished, tmp_path) -> Path:
    """A finished run that may be damaged."""
    return shutil.copytree(finished, tmp_path / "run")


def frcl(monkeypatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["frcl", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


# -- the lock


def test_the_lock_outlives_every_file_of_the_folder(run):
    with alone_in(run):
        shutil.rmtree(run / ".lock", ignore_errors=True)
        (run / ".lock").unlink(missing_ok=True)
        with pytest.raises(CheckpointError, match="another process is at work"), alone_in(run):
            pass
    with alone_in(run):
        pass


def test_a_link_in_place_of_the_lock_is_not_written_through(run, tmp_path, monkeypatch):
    target = tmp_path / "precious"
    target.write_bytes(b"content")
    (run / ".lock").symlink_to(target)
    with alone_in(run):
        pass
    assert target.read_bytes() == b"content"
    real = __import__("fcntl").flock

    def without_folders(handle, how):  # a system that locks files only
        if os.path.isdir(f"/proc/self/fd/{handle}"):  # noqa: PTH112
            raise OSError(errno.EBADF, "no")
        return real(handle, how)

    monkeypatch.setattr("fcntl.flock", without_folders)
    with pytest.raises(OSError, match="symbolic link"), alone_in(run):
        pass
    assert target.read_bytes() == b"content"
    (run / ".lock").unlink()
    with alone_in(run), pytest.raises(CheckpointError, match="at work"), alone_in(run):
        pass


def test_the_report_is_written_inside_the_lock(run, tmp_path, monkeypatch):
    busy = []

    def watched(*given, **options):
        with pytest.raises(CheckpointError, match="at work"), alone_in(run):
            pass
        busy.append(given)
        return write_report(*given, **options)

    monkeypatch.setattr("frcl.cli.write_report", watched)
    assert frcl(monkeypatch, "resume", run, "--quiet") == 0
    assert busy
    assert (run / "report.html").is_file()


def test_left_over_temporary_files_are_swept(run):
    left = [run / ".checkpoint.frcl.123-0123456789ab.tmp", run / "figures" / ".a.png.1-ba9876543210.tmp"]
    mine = [run / ".mine.tmp", run / "tmp", run / ".checkpoint.frcl.tmp"]
    for path in (*left, *mine):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    runner.resume(run, Observer())
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in mine)
    sweep(run)


def test_a_failed_write_leaves_no_temporary_file_and_names_the_file(tmp_path):
    for number in range(1, 6):
        with (
            Disk(tmp_path, fail=(number, lambda: OSError(errno.ENOSPC, "No space left on device"))).watching(),
            pytest.raises(OSError, match=r"No space left on device: '.*/file'"),
        ):
            write_atomically(tmp_path / "file", b"content")
        assert not list(tmp_path.glob(".*"))


def test_a_full_disk_ends_a_command_in_one_line(run, monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    assert frcl(monkeypatch, "run", "--out", run, "--overwrite", "--steps", "2", "--tasks", "1", "--quiet") == 1
    said = capsys.readouterr().err
    assert "No space left on device" in said
    assert str(run / "config.toml") in said.replace("\n", "")


# -- logs


@pytest.mark.parametrize("name", ["log.csv", "kl_past.csv"])
@pytest.mark.parametrize("kind", ["short", "damaged", "missing", "folder"])
def test_a_log_that_is_not_what_was_written_is_refused(run, name, kind):
    path, content = run / name, (run / name).read_bytes()
    path.unlink()
    match kind:
        case "short":
            path.write_bytes(content[:-1])
        case "damaged":
            path.write_bytes(content[:40] + b"\0" + content[41:])
        case "folder":
            path.mkdir()
    with pytest.raises(CheckpointError, match=rf"{name}.*put the file back") as caught:
        runner.resume(run, Observer())
    assert "\n" not in str(caught.value)
    assert kind != "short" or path.read_bytes() == content[:-1]  # nothing was appended


def test_what_a_log_has_beyond_the_checkpoint_is_cut_off(run):
    content = (run / "log.csv").read_bytes()
    write_at(run / "log.csv", b"half a li", len(content))
    runner.resume(run, Observer())
    assert (run / "log.csv").read_bytes() == content


def test_the_written_part_of_a_log_adds_up():
    import zlib

    whole = b"one,two\n1,2\n"
    assert Written().and_then(whole[:5]).and_then(whole[5:]) == Written(len(whole), zlib.crc32(whole))


def test_options_changed_since_the_run_began_are_named(run):
    config = run / "config.toml"
    config.write_text(config.read_text().replace("points = 3\n", "points = 4\n").replace("lr = 0.001", "lr = 0.002"))
    with pytest.raises(CheckpointError, match=r"learner\.lr, learner\.points"):
        runner.resume(run, Observer())
    config.write_text(config.read_text().replace("points = 4\n", "points = 3\n").replace("lr = 0.002", "lr = 0.001"))
    config.write_text(config.read_text().replace("threads = 1", "threads = 2"))  # decides nothing
    runner.resume(run, Observer())


@pytest.mark.parametrize("lacks", ["config.toml", CHECKPOINT])
def test_an_option_that_a_run_did_not_know_does_not_count_as_that_of_the_method(lacks, tmp_path):
    """Of files that lack an option, as those of another version, none is resumed with the method's default."""
    parts = {"stream": {"tasks": 2}, "network": {"widths": [4]}}
    learner = {"points": 3, "steps": 4, "fisher_examples": 5, "lr_decay": 0.0}
    run = tmp_path / "run"
    layer = {"seeds": [0], "method": "frcl-plus", **parts, "learner": learner}
    runner.run(resolve("split-digits", layer), run, Observer())
    if lacks == CHECKPOINT:
        meta, tensors = load_state(run / CHECKPOINT)
        del meta["progress"]["options"]["learner"]["lr_decay"]
        save_state(run / CHECKPOINT, meta, tensors)
    else:
        config = run / "config.toml"
        config.write_text(config.read_text().replace("lr_decay = 0.0\n", ""))
    with pytest.raises(CheckpointError, match=r"other options than the run: learner\.lr_decay; put"):
        runner.resume(run, Observer())


# -- damaged files


@pytest.mark.parametrize("name", ["points.npz", "result.json", "config.toml", CHECKPOINT, "log.csv"])
def test_flipped_bits_are_refused_in_one_line_or_do_no_harm(run, name):
    draws, good = random.Random(5), (run / name).read_bytes()
    refused = []
    for _ in range(60):
        damaged = bytearray(good)
        for _ in range(draws.choice((1, 3))):
            damaged[draws.randrange(len(damaged))] ^= 1 << draws.randrange(8)
        (run / name).write_bytes(damaged[: draws.randrange(len(damaged))] if draws.random() < 0.1 else damaged)
        try:
            if name in ("points.npz", "result.json"):
                comparison_rows(find_runs([run]))
            else:
                runner.resume(run, Observer())
        except FrclError as error:
            refused.append(str(error))
    assert len(refused) > 30
    assert not [message for message in refused if "\n" in message]


def test_a_run_without_its_points_is_reported(run, tmp_path):
    (run / "points.npz").unlink()
    write_report(find_runs([run]), tmp_path / "report.html")
    assert "points.npz is missing" in (tmp_path / "report.html").read_text()
    assert runner.resume(run, Observer()).tasks == ("0/1", "2/3")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' + "9" * 5000 + "}", "null", '"text"'])
def test_hostile_json_is_refused_in_one_line(run, text):
    (run / "result.json").write_text(text)
    with pytest.raises(DataError) as caught:
        find_runs([run])
    assert "\n" not in str(caught.value)


def test_text_that_no_terminal_should_see_is_replaced(run, tmp_path, monkeypatch, capsys):
    content = json.loads((run / "result.json").read_text()) | {"method": "\x1b[31m\ud800red", "benchmark": "[/b]"}
    (run / "result.json").write_text(json.dumps(content))
    monkeypatch.setattr(sys, "argv", ["frcl", "compare", str(run)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    said = capsys.readouterr().out
    assert "?" in said
    assert "\x1b" not in said


# -- hostile options


@pytest.mark.parametrize(
    "setting",
    ["lr=" + "9" * 5000, "lr=" + "9" * 400, "steps=" + "9" * 400, "widths=[" + "9" * 400 + "]", "lr=" + "[" * 5000,
     "thresholds=[" + "9" * 400 + "]", "seeds=[" + "9" * 400 + "]", "seeds=[-1]", "threshold=" + "9" * 30],
)  # fmt: skip
def test_huge_numbers_are_refused(setting):
    with pytest.raises(OptionError):
        resolve("split-digits", parse_setting(setting))


def test_too_many_threads_are_refused(tmp_path):
    with pytest.raises(OptionError, match="threads=5000 is too many"):
        runner.run(resolve("split-digits", {"run": {"threads": 5000}}), tmp_path / "run", Observer())


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_not_a_file_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "config.toml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(OptionError, match=r"it is not a regular file|Is a directory"):
        read_toml(path)


# -- arrays


def packed(header: dict, body: bytes) -> io.BytesIO:
    member, buffer = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(member, header)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", member.getvalue() + body)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize("shape", [(10**12,), (10**30,), (2**31, 2**31), (-1,)])
def test_a_header_that_promises_terabytes_allocates_nothing(shape):
    with pytest.raises(ValueError, match=r"its length does not"):
        read_arrays(packed({"descr": "<f4", "fortran_order": False, "shape": shape}, b"1234"), 1 << 40)


def test_a_zip_bomb_is_refused_before_it_is_unpacked():
    bomb = packed({"descr": "<f4", "fortran_order": False, "shape": (1 << 22,)}, bytes(1 << 24))
    assert bomb.getbuffer().nbytes < 1 << 16
    with pytest.raises(ValueError, match="it would unpack to more than 15 MiB"):
        read_arrays(bomb, 15 << 20)
    assert read_arrays(bomb, 17 << 20)["x"].shape == (1 << 22,)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f8", ">i4", "u1", "<U3", "?"])
def test_arrays_are_read_as_numpy_does(order, dtype):
    array = np.asarray(np.arange(24).reshape(2, 3, 4) % 7, dtype=dtype, order=order)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, a=array, b=array[:, :0], c=np.array(5))
    for name, expected in np.load(io.BytesIO(buffer.getvalue())).items():
        found = read_arrays(buffer, 1 << 20)[name]
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)
        assert found.flags.writeable


# -- Ctrl-C


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.15, 0.4, 0.8])
def test_an_interrupt_during_import_shows_no_traceback(after):
    command = [sys.executable, "-c", "import frcl_main; print('in', flush=True); frcl_main.main()", "list"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env={**os.environ, "PYTHONPATH": SOURCE})  # fmt: skip
    child.stdout.readline()
    time.sleep(after)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert "Traceback" not in said
    assert child.returncode in (-signal.SIGINT, 130, 0)  # 0: it had finished


@pytest.mark.parametrize("place", ["frcl.cli.say_result", "frcl.cli.console.err.print"])
def test_an_interrupt_while_the_last_message_prints_shows_no_traceback(run, place, monkeypatch, capsys):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(place, stopped)
    folder = run if place.endswith("result") else run / "nowhere"
    assert frcl(monkeypatch, "resume", folder) == 130
    assert "Traceback" not in capsys.readouterr().err


# -- frcl check


def test_check_says_that_a_run_is_whole(run, monkeypatch, capsys):
    assert frcl(monkeypatch, "check", run) == 0
    said = capsys.readouterr().out.replace("\n", " ")
    for name in FILES:
        assert f"{name}: whole" in said
    assert "is whole" in said
    assert frcl(monkeypatch, "check", run / "checkpoint.frcl") == 0


@pytest.mark.parametrize("name", FILES)
def test_check_names_the_file_that_is_damaged(run, name, monkeypatch, capsys):
    content = bytearray((run / name).read_bytes())
    content[len(content) // 2] ^= 255
    (run / name).write_bytes(content)
    assert frcl(monkeypatch, "check", run) == 1
    said = capsys.readouterr().out
    assert f"{name}: damaged" in said
    assert said.count(": damaged") == 1


def test_check_of_a_run_that_was_stopped_and_of_other_files(tmp_path, monkeypatch, capsys):
    with pytest.raises(Interrupted):
        runner.run(CONFIG, tmp_path / "run", Observer(), stop=lambda: True)
    (tmp_path / "run" / ".result.json.7-0123456789ab.tmp").write_bytes(b"")
    assert frcl(monkeypatch, "check", tmp_path / "run") == 0
    assert "left by a killed process" in capsys.readouterr().out
    assert frcl(monkeypatch, "check", tmp_path / "nowhere") == 1
    assert frcl(monkeypatch, "check", tmp_path) == 1  # no run
    (tmp_path / "text").write_text("hello")
    assert frcl(monkeypatch, "check", tmp_path / "text") == 1
    save_state(tmp_path / "foreign", {"a": 1}, {})
    assert frcl(monkeypatch, "check", tmp_path / "foreign") == 1


def test_check_finds_values_that_are_not_finite(run, monkeypatch, capsys):
    meta, tensors = load_state(run / CHECKPOINT)
    name = next(name for name, tensor in tensors.items() if tensor.is_floating_point())
    tensors[name].view(-1)[0] = float("nan")
    save_state(run / CHECKPOINT, meta, tensors)
    assert frcl(monkeypatch, "check", run) == 1
    assert f"'{name}' has values that are not finite" in capsys.readouterr().out.replace("\n", "")


def test_names_of_tasks_are_no_markup(run):
    from rich.console import Console

    from frcl.experiment.display import accuracy_table
    from frcl.experiment.results import read_result

    content = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(content | {"tasks": ["[/b]", "[red]"]}))
    console = Console(file=io.StringIO(), width=100)
    console.print(accuracy_table(read_result(run / "result.json")))
    assert "[/b]" in console.file.getvalue()
