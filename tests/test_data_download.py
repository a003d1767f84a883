"""The downloader, against a real server on the loopback interface."""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from data_helpers import NOWHERE, Mirror, mirror
from frcl.data import files as module
from frcl.data.files import MIRRORS, DataFile, unpacked
from frcl.errors import DataError

CONTENT = np.random.default_rng(0).bytes(200_000)
RAW = gzip.compress(CONTENT, mtime=0)


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv(MIRRORS, raising=False)


def described(*mirrors: str) -> DataFile:
    return DataFile("file.gz", "some", "sha256 unpacked", hashlib.sha256(CONTENT).hexdigest(), mirrors)


def test_a_good_file_arrives_whole_with_progress(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    with mirror({"/file.gz": RAW}) as server:
        server.slow["/file.gz"] = 0.5
        outcome = described(server.address).download(tmp_path / "new", on_progress=lambda *report: seen.append(report))
    assert outcome.content == CONTENT
    assert outcome.path == tmp_path / "new" / "file.gz"
    assert outcome.path.read_bytes() == RAW
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file.gz"]
    received = [done for _, done, _ in seen]
    assert len(seen) > 2
    assert received == sorted(received)
    assert seen[-1] == ("file.gz", len(RAW), len(RAW))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("cut", "the connection broke"),
        ("wrong", "damaged or another file"),
        ("half", "damaged"),
        ("hang", "no answer within 0.4 s"),
        ("stall", "no answer within 0.4 s"),
        ("down", "cannot connect"),
        ("gone", "404 Client Error"),
        ("nonsense", "No connection adapters"),
    ],
)
def test_a_bad_mirror_is_named_and_the_next_one_used(tmp_path: Path, fault: str, reason: str) -> None:
    with mirror({"/good/file.gz": RAW, "/bad/file.gz": RAW}) as server:
        bad = server.address + "bad/"
        match fault:
            case "cut":
                server.cut.add("/bad/file.gz")
            case "wrong":
                server.files["/bad/file.gz"] = gzip.compress(CONTENT[:-1])
            case "half":
                server.files["/bad/file.gz"] = RAW[: len(RAW) // 2]
            case "hang":
                server.hang.add("/bad/file.gz")
            case "stall":
                server.stall.add("/bad/file.gz")
            case "down":
                bad = NOWHERE
            case "gone":
                del server.files["/bad/file.gz"]
            case _:
                bad = "gopher://127.0.0.1/"
        failed = described(bad).download(tmp_path, timeout=0.4)
        assert failed.content is None
        assert len(failed.problems) == 1
        assert failed.problems[0].startswith(f"{bad}file.gz: ")
        assert reason in failed.problems[0]
        assert "\n" not in failed.problems[0]
        assert list(tmp_path.iterdir()) == []

        outcome = described(bad, server.address + "good/").download(tmp_path, timeout=0.4)
        assert outcome.content == CONTENT
        assert [path.name for path in tmp_path.iterdir()] == ["file.gz"]


def test_a_hanging_mirror_costs_no_more_than_its_time_out(tmp_path: Path) -> None:
    with mirror({}) as server:
        server.hang.add("/file.gz")
        start = time.monotonic()
        described(server.address).download(tmp_path, timeout=0.3)
        assert 0.25 < time.monotonic() - start < 3.0


def test_a_failed_download_leaves_the_old_file_alone(tmp_path: Path) -> None:
    (tmp_path / "file.gz").write_bytes(b"old")
    with mirror({"/file.gz": RAW}) as server:
        server.cut.add("/file.gz")
        assert described(server.address).download(tmp_path).content is None
    assert (tmp_path / "file.gz").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_server_that_unpacks_on_the_way_is_understood(tmp_path: Path) -> None:
    with mirror({"/file.gz": CONTENT}) as server:
        outcome = described(server.address).download(tmp_path)
    assert outcome.content == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_server_that_sends_too_much_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST", 100)
    with mirror({"/file.gz": b"x" * 200}) as server:
        outcome = described(server.address).download(tmp_path)
    assert "sends more than" in outcome.problems[0]
    assert list(tmp_path.iterdir()) == []


def test_a_gzip_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frcl.data.files.LARGEST", 1000)
    assert unpacked(gzip.compress(bytes(1000)), "f") == bytes(1000)
    with pytest.raises(DataError, match="f is refused: it would unpack to more"):
        unpacked(gzip.compress(bytes(1001)), "f")


def test_verification_looks_at_content_not_packing() -> None:
    file = described()
    assert file.verified(RAW, "a") == file.verified(gzip.compress(CONTENT, 1), "b") == file.verified(CONTENT, "c")
    with pytest.raises(DataError, match="d is damaged or another file"):
        file.verified(CONTENT + b"x", "d")


def test_mirrors_can_be_replaced_and_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mirror({"/mine/file.gz": RAW}) as server:
        monkeypatch.setenv(MIRRORS, f"{NOWHERE} {server.address}mine")
        assert described("http://127.0.0.1:9/usual/").download(tmp_path).content == CONTENT
        assert server.requests == ["/mine/file.gz"]
        monkeypatch.setenv(MIRRORS, "")
        outcome = described(server.address).download(tmp_path / "none")
    assert outcome.problems == ("file.gz has no mirror to download it from",)


def test_without_requests_the_problem_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "requests", None)
    outcome = described(NOWHERE).download(tmp_path)
    assert outcome.problems == ("downloading needs the package requests, which is not installed",)
    assert list(tmp_path.iterdir()) == []


PROCESS = """
import sys
from pathlib import Path
from frcl.data.files import DataFile
address, digest, folder = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
outcome = DataFile("file.gz", "some", "sha256 unpacked", digest, (address,)).download(Path(folder))
print(outcome.content is not None, outcome.problems)
"""


@pytest.mark.slow
def test_two_processes_at_once_both_get_the_whole_file(tmp_path: Path) -> None:
    with mirror({"/file.gz": RAW}) as server:
        server.slow["/file.gz"] = 0.6
        command = [sys.executable, "-c", PROCESS, server.address, described().digest, str(tmp_path)]
        processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        overlap = _requests_before_the_first_file(tmp_path, processes, server)
        answers = [process.communicate()[0] for process in processes]
    assert answers == ["True ()\n", "True ()\n"]
    assert overlap == 2  # both were really under way at once
    assert [path.name for path in tmp_path.iterdir()] == ["file.gz"]
    assert (tmp_path / "file.gz").read_bytes() == RAW


def _requests_before_the_first_file(folder: Path, processes: list[subprocess.Popen[str]], server: Mirror) -> int:
    """How many requests were under way before there was a file; the final name, if there, always held all of it."""
    most = 0
    end = time.monotonic() + 30
    while any(process.poll() is None for process in processes) and time.monotonic() < end:
        requests = len(server.requests)
        if (folder / "file.gz").exists():
            assert (folder / "file.gz").read_bytes() == RAW
        else:
            most = requests
        time.sleep(0.005)
    return most


def test_a_mirror_that_drips_is_given_up(tmp_path: Path) -> None:
    """Every piece comes in time, so that only a deadline for the whole file ends it."""
    with mirror({"/slow/file.gz": RAW, "/good/file.gz": RAW}) as server:
        server.slow["/slow/file.gz"] = 60.0
        start = time.monotonic()
        slow, good = f"{server.address}slow/", f"{server.address}good/"
        outcome = described(slow, good).download(tmp_path, timeout=10.0, deadline=1.0)
        assert time.monotonic() - start < 8.0
        assert outcome.content == CONTENT
        failed = described(slow).download(tmp_path / "other", timeout=10.0, deadline=0.5)
    assert failed.problems == (f"{slow}file.gz: not complete after 0.5 s",)


def test_the_archives_of_omniglot_are_pinned_by_sha256() -> None:
    from frcl.data.files import OMNIGLOT

    assert [(len(file.digest), file.check) for file in OMNIGLOT.files] == [(64, "sha256 unpacked")] * 2
