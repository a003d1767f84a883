"""Where files are looked for, what is said of them, and what happens when they are missing."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch

from data_helpers import NOWHERE, load_mnist, mirror, small_mnist, small_omniglot
from frcl.data import BenchmarkOptions, open_benchmark
from frcl.data.datasets import MNIST, OMNIGLOT, fetch
from frcl.data.files import MIRRORS, data_folders, user_cache
from frcl.data.omniglot import load_omniglot, omniglot_tasks
from frcl.errors import DataError, OptionError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of the user's, and no FRCL_DATA."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FRCL_DATA", raising=False)
    monkeypatch.delenv(MIRRORS, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "cache" / "frcl"


@pytest.fixture
def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that cannot be written to, even by root."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    really = Path.mkdir

    def mkdir(self: Path, *args: object, **kwargs: object) -> None:
        if folder in self.parents or self == folder:
            raise PermissionError(13, "Permission denied")
        really(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", mkdir)
    return folder


def put(folder: Path, contents: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def test_places_are_looked_at_in_order(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRCL_DATA", str(tmp_path / "env"))
    assert data_folders(tmp_path / "given") == (tmp_path / "given", tmp_path / "env", cache)
    assert data_folders(tmp_path / "env") == (tmp_path / "env", cache)
    files, contents = small_mnist()
    name = files.files[0].name
    for root in (cache, tmp_path / "env", tmp_path / "given"):
        put(root / "mnist", {name: contents[name]})
        assert files.files[0].find(tmp_path / "given").path == root / "mnist" / name


@pytest.mark.parametrize("inside", ["mnist", "."])
@pytest.mark.parametrize("packed", [True, False])
def test_files_are_found_packed_or_plain_with_or_without_a_folder(tmp_path: Path, inside: str, packed: bool) -> None:
    files, contents = small_mnist()
    given = contents if packed else {name[:-3]: gzip.decompress(raw) for name, raw in contents.items()}
    put(tmp_path / inside, given)
    task = load_mnist(0, data=tmp_path, files=files)
    assert (len(task.train), len(task.validation), len(task.test)) == (120, 10, 30)
    assert task.train.x.shape == (120, 16)
    assert float(task.train.x.min()) >= 0.0
    assert float(task.train.x.max()) <= 1.0
    assert task.train.y.tolist() == [k % 10 for k in range(120)]
    raw = gzip.decompress(contents[files.files[0].name])[16:]
    assert torch.equal((task.train.x * 255).round().to(torch.uint8), torch.tensor(list(raw)).view(120, 16))


def test_the_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_cache() == tmp_path / "cache" / "frcl"
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert user_cache() == Path.home() / ".cache" / "frcl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert user_cache() == Path.home() / ".cache" / "frcl"


def test_a_wrong_file_is_passed_over_and_a_right_one_used(tmp_path: Path, cache: Path) -> None:
    files, contents = small_mnist()
    name = files.files[1].name
    put(tmp_path / "given" / "mnist", {name: contents[files.files[3].name]})
    wrong = files.files[1].find(tmp_path / "given")
    assert not wrong.verified
    assert wrong.path == tmp_path / "given" / "mnist" / name
    assert "is damaged or another file: its sha256 unpacked is" in wrong.problems[0]
    put(cache / "mnist", {name: contents[name]})
    assert files.files[1].find(tmp_path / "given").path == cache / "mnist" / name


def test_missing_files_are_downloaded_once(tmp_path: Path, cache: Path) -> None:
    _, contents = small_mnist()
    with mirror({f"/{name}": raw for name, raw in contents.items()}) as server:
        files, _ = small_mnist(server.address)
        put(tmp_path / "env" / "mnist", {files.files[3].name: contents[files.files[3].name]})
        first = load_mnist(0, data=tmp_path / "env", files=files)
        assert sorted(server.requests) == sorted(f"/{file.name}" for file in files.files if file is not files.files[3])
        again = load_mnist(0, data=tmp_path / "env", files=files)
        assert len(server.requests) == 3
    assert torch.equal(first.train.x, again.train.x)
    assert sorted(path.name for path in (tmp_path / "env" / "mnist").iterdir()) == sorted(contents)
    assert not cache.exists()


def test_without_a_named_folder_downloads_go_to_the_cache(cache: Path) -> None:
    _, contents = small_mnist()
    seen: list[str] = []
    with mirror({f"/{name}": raw for name, raw in contents.items()}) as server:
        files, _ = small_mnist(server.address)
        status = fetch("split-mnist", datasets=[files], on_progress=lambda name, *_: seen.append(name))
    assert [one.path for one in status] == [cache / "mnist" / file.name for file in files.files]
    assert all(one.verified and one.needed and one.problem is None for one in status)
    assert set(seen) == set(contents)


def test_a_folder_that_cannot_be_written_to_is_passed_over(read_only: Path, cache: Path) -> None:
    _, contents = small_mnist()
    with mirror({f"/{name}": raw for name, raw in contents.items()}) as server:
        files, _ = small_mnist(server.address)
        status = fetch("mnist", read_only, datasets=[files])
    assert {one.path.parent for one in status if one.path} == {cache / "mnist"}


def test_a_wrong_file_is_replaced_in_the_cache_but_never_in_a_folder_of_the_user_s(tmp_path: Path, cache: Path) -> None:
    _, contents = small_mnist()
    with mirror({f"/{name}": raw for name, raw in contents.items()}) as server:
        files, _ = small_mnist(server.address)
        name = files.files[0].name
        mine = tmp_path / "mine"
        put(mine / "mnist", {name: b"mine"})
        put(cache / "mnist", {name: b"damaged"})
        status = fetch("mnist", mine, datasets=[files])
    assert (mine / "mnist" / name).read_bytes() == b"mine"
    assert (cache / "mnist" / name).read_bytes() == contents[name]
    assert status[0].path == cache / "mnist" / name


def test_when_nothing_works_one_line_says_what_to_do(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRCL_DATA", str(tmp_path / "env"))
    files, contents = small_mnist()
    put(tmp_path / "given", {files.files[3].name: contents[files.files[3].name]})
    put(tmp_path / "given", {files.files[2].name: b"damaged"})
    with pytest.raises(DataError) as caught:
        load_mnist(0, data=tmp_path / "given", files=files)
    message = str(caught.value)
    assert "\n" not in message
    for file in (files.files[0], files.files[1], files.files[2]):
        assert file.name in message.split(" could not be had")[0]
    assert files.files[3].name not in message
    for place in (tmp_path / "given", tmp_path / "env", cache):
        assert str(place) in message
    assert f"{files.files[2].name} is damaged or another file" in message
    assert f"{NOWHERE}{files.files[0].name}: cannot connect" in message
    assert f"By hand: get the files from {NOWHERE}" in message
    assert "--data or FRCL_DATA" in message


@pytest.mark.parametrize(("name", "files"), [("split-mnist", MNIST.files), ("omniglot", OMNIGLOT.files)])
def test_offline_the_real_benchmarks_say_which_files_they_need(
    name: str, files: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MIRRORS, "")
    with pytest.raises(DataError) as caught:
        open_benchmark(name, seed=0)
    assert all(file.name in str(caught.value) for file in files)  # type: ignore[attr-defined]
    assert "has no mirror to download it from" in str(caught.value)
    assert "By hand: get the files from https://" in str(caught.value)


def test_where_nothing_can_be_written_the_error_says_so(read_only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(read_only))
    files, _ = small_mnist()
    with pytest.raises(DataError, match="none of these folders can be written to"):
        files.contents()


def test_status_says_what_is_there(tmp_path: Path) -> None:
    mnist, contents = small_mnist()
    omniglot, _ = small_omniglot()
    name = mnist.files[0].name
    put(tmp_path / "mnist", {name: contents[name], mnist.files[2].name: b"damaged"})
    status = {one.name: one for one in (*mnist.status(tmp_path), *omniglot.status(tmp_path))}
    assert list(status) == [file.name for file in (*mnist.files, *omniglot.compact, *omniglot.files)]
    assert status[name].verified
    assert status[name].path == tmp_path / "mnist" / name
    assert status[name].problem is None
    damaged = status[mnist.files[2].name]
    assert not damaged.verified
    assert damaged.path == tmp_path / "mnist" / mnist.files[2].name
    assert "is damaged" in (damaged.problem or "")
    missing = status[mnist.files[3].name]
    assert (missing.path, missing.verified, missing.problem) == (None, False, None)
    assert [status[file.name].needed for file in (*omniglot.compact, *omniglot.files)] == [False, True, True]


def test_omniglot_archives_are_read_once_and_the_compact_file_after(tmp_path: Path, cache: Path) -> None:
    files, contents = small_omniglot()
    put(tmp_path / "omniglot", contents)
    drawings = load_omniglot(tmp_path, files=files)
    assert drawings.alphabets.tolist() == ["Aa", "Bb", "Cc"]
    assert len(drawings) == 20 * 7
    made = tmp_path / "omniglot" / files.compact[0].name
    assert made.is_file()
    for name in contents:
        (tmp_path / "omniglot" / name).unlink()
    assert load_omniglot(tmp_path, files=files).digest() == drawings.digest()
    assert [one.needed for one in files.status(tmp_path)] == [False, False, False]
    made.write_bytes(made.read_bytes()[:-100])  # damaged: not used
    with pytest.raises(DataError, match=r"one\.zip, two\.zip could not be found or downloaded"):
        load_omniglot(tmp_path, files=files)


def test_omniglot_is_downloaded_and_makes_tasks(cache: Path) -> None:
    _, contents = small_omniglot()
    with mirror({f"/{name}": raw for name, raw in contents.items()}) as server:
        files, _ = small_omniglot(server.address)
        status = fetch("omniglot", datasets=[files])
    assert {one.name: one.verified for one in status} == {"compact.npz": True, "one.zip": True, "two.zip": True}
    assert sorted(path.name for path in (cache / "omniglot").iterdir()) == ["compact.npz", "one.zip", "two.zip"]
    benchmark = omniglot_tasks(load_omniglot(files=files), BenchmarkOptions(alphabet_order="alphabetical"), seed=0)
    assert [benchmark.task(k).name for k in range(3)] == ["Aa", "Bb", "Cc"]
    ink = benchmark.task(2).test.x
    assert ink.shape == (12, 28, 28)
    assert 0.0 < float(ink.mean()) < 0.5


def test_omniglot_s_compact_file_is_not_needed_to_go_on(read_only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(read_only / "cache"))
    files, contents = small_omniglot()
    for name, content in contents.items():
        (read_only / name).write_bytes(content)
    assert len(load_omniglot(read_only, files=files)) == 140
    assert sorted(path.name for path in read_only.iterdir()) == ["one.zip", "two.zip"]


def test_nothing_is_fetched_for_digits_and_unknown_names_are_refused(cache: Path) -> None:
    assert fetch("split-digits") == fetch("permuted-digits") == []
    with pytest.raises(OptionError, match="there is no data set 'mnits'; did you mean 'mnist'"):
        fetch("mnits")
    assert not cache.exists()
