"""CIFAR's compact files, its official archives, and the benchmarks made from them."""

import gzip
import hashlib
import io
import os
import tarfile
import weakref
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from data_helpers import NOWHERE, mirror
from frcl import DataError, OptionError
from frcl.data import BENCHMARKS, BenchmarkOptions, open_benchmark
from frcl.data.cifar import cifar10_tasks, cifar100_tasks, image_tasks, read_cifar, split_cifar_tasks
from frcl.data.cifar_files import Images, Parts, from_bytes, read_archive, read_compact, to_bytes, unpack
from frcl.data.files import CIFAR10, CIFAR100, DataFile, DataSet, fetch

RNG = np.random.default_rng(2)


def images(n, classes):
    return Images(RNG.integers(0, 256, (n, 32, 32, 3), np.uint8), (np.arange(n) % classes).astype(np.uint8))


TEN, HUNDRED = Parts(images(50, 10), images(20, 10)), Parts(images(200, 100), images(100, 100))


def packed(pixels):
    """The planes of images by the definition of LOCO-I: a median of three numbers predicts each value."""
    y = pixels.astype(int)
    planes = []
    for p in (y[..., 1], y[..., 0] - y[..., 1], y[..., 2] - y[..., 1]):
        guess = np.zeros_like(p)
        left, upper, corner = p[:, 1:, :-1], p[:, :-1, 1:], p[:, :-1, :-1]
        guess[:, 1:, 1:] = np.median([left, upper, left + upper - corner], axis=0)
        guess[:, 0, 1:], guess[:, 1:, 0] = p[:, 0, :-1], p[:, :-1, 0]
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        planes.append(packer.compress(((p - guess) % 256).astype(np.uint8).tobytes()) + packer.flush())
    return planes


def compact(given, block, **changed):
    """The bytes of a compact file with `block` images per block."""
    arrays = {"labels": given.labels, "count": np.array([len(given.labels), block])}
    for number, start in enumerate(range(0, len(given.labels), block)):
        for channel, plane in enumerate(packed(given.pixels[start : start + block])):
            arrays[f"plane_{number}_{channel}"] = np.frombuffer(plane, np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, **{**arrays, **changed})
    return buffer.getvalue()


def records(given, labels):
    """The bytes of an official .bin file; with two label bytes the first, coarse one is 77."""
    planes = given.pixels.transpose(0, 3, 1, 2).reshape(len(given.labels), -1)
    coarse = np.full((len(planes), labels - 1), 77, np.uint8)
    return np.concatenate([coarse, given.labels[:, None], planes], axis=1).tobytes()


def tarred(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def archive10(parts=TEN):
    top, n = "cifar-10-batches-bin", len(parts.train.labels) // 5
    batches = {
        f"{top}/data_batch_{k + 1}.bin": records(Images(*(a[k * n : (k + 1) * n] for a in parts.train)), 1)
        for k in range(5)
    }
    backwards = dict(reversed(batches.items()))
    return tarred({f"{top}/readme.html": b"x", f"{top}/test_batch.bin": records(parts.test, 1), **backwards})


def archive100(parts=HUNDRED):
    members = {"train": parts.train, "test": parts.test}
    return tarred({f"cifar-100-binary/{name}.bin": records(part, 2) for name, part in members.items()})


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_compact_files_are_decoded_without_loss():
    given = images(5, 10)
    given.pixels[1] = 255
    given.pixels[2, :, :, 1] = 0
    assert same(read_compact(compact(given, 2), "here"), given)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"labels": np.zeros(2, np.uint8)}, "do not fit together"),
        ({"labels": np.zeros(3, np.int64)}, "do not fit together"),
        ({"count": np.array([3, 0])}, "do not fit together"),
        ({"count": np.array([1 << 40, 3])}, "do not fit together"),
        ({"count": np.array([3])}, "cannot be read"),
        ({"plane_0_1": np.zeros(9, np.uint8)}, "damaged|bytes"),
        ({"plane_0_1": np.frombuffer(packed(images(4, 2).pixels)[0], np.uint8)}, "bytes or more, not 3072"),
        ({"labels": np.array([{}], object)}, "cannot be read"),
    ],
)
def test_damaged_compact_files_are_refused(changed, message):
    with pytest.raises(DataError, match=message):
        read_compact(compact(images(3, 2), 3, **changed), "here")
    with pytest.raises(DataError, match="cannot be read"):
        read_compact(b"no zip", "here")
    assert unpack(packed(images(1, 1).pixels), 1).shape == (1, 32, 32, 3)


@pytest.mark.parametrize(("make", "parts"), [(archive10, TEN), (archive100, HUNDRED)])
def test_the_official_archives_are_read_in_their_order(make, parts):
    found = read_archive(make(), "here")
    assert same(found.train, parts.train)
    assert same(found.test, parts.test)
    assert found.digest().split()[3] == hashlib.sha256(parts.test.labels.tobytes()).hexdigest()
    assert read_archive(make(), "here").digest() == from_bytes(to_bytes(found)).digest() == parts.digest()


def test_other_archives_are_refused():
    one = records(TEN.train, 1)
    for raw, message in (
        (b"nothing", "not a readable"),
        (gzip.compress(b"nothing"), "not a readable"),
        (tarred({"cifar-10-batches-py/data_batch_1": b"pickle"}), "pickled files are not read"),
        (tarred({"a/train.bin": one[:-1], "a/test.bin": one}), "not a number of records"),
        (tarred({f"a/{i}": b"" for i in range(40)}), "more or larger files"),
        (archive10()[:-2000], "not a readable"),
    ):
        with pytest.raises(DataError, match=message):
            read_archive(raw, "here")
    link = io.BytesIO()
    with tarfile.open(fileobj=link, mode="w:gz") as archive:
        info = tarfile.TarInfo("a/train.bin")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(DataError, match="is not a file"):
        read_archive(link.getvalue(), "here")


def small(parts, archive, names, address=NOWHERE):
    """A data set like CIFAR's: an archive, and compact files of the first half of the classes."""
    half = [Images(*(a[one.labels < 50] for a in one)) for one in parts]
    contents = {f"{name}.npz": compact(one, 30) for name, one in zip(names, half, strict=True)}
    files = tuple(DataFile(n, "cifar", "sha256", hashlib.sha256(raw).hexdigest()) for n, raw in contents.items())
    official = DataFile("official.tar.gz", "cifar", "sha256 of images", parts.digest(), (address,))
    return DataSet("cifar100", (official,), files), {**contents, "official.tar.gz": archive()}


def put(folder, contents, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or contents:
        (folder / name).write_bytes(contents[name])


def test_both_forms_give_the_same_images_and_either_is_found(tmp_path, monkeypatch):
    monkeypatch.delenv("FRCL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files, contents = small(HUNDRED, archive100, ("a-train", "a-test"))
    put(tmp_path / "compact" / "cifar", contents, "a-train.npz", "a-test.npz")
    put(tmp_path / "official", contents, "official.tar.gz")
    put(tmp_path / "both", contents)
    half, whole = read_cifar(files, tmp_path / "compact"), read_cifar(files, tmp_path / "official")
    assert same(whole.train, HUNDRED.train)
    for one, other in zip(cifar100_tasks(half), cifar100_tasks(whole)[:5], strict=True):
        assert one.name == other.name
        assert torch.equal(one.learning.x, other.learning.x)
        assert torch.equal(one.test.y, other.test.y)
    assert len(cifar100_tasks(whole)) == 10
    assert same(read_cifar(files, tmp_path / "both").train, half.train)
    assert same(read_cifar(files, tmp_path / "both", whole=True).train, HUNDRED.train)
    assert same(read_cifar(files, tmp_path / "compact", whole=True).train, half.train)
    needed = {one.name: one.needed for one in files.status(tmp_path / "compact")}
    assert needed == {"a-train.npz": False, "a-test.npz": False, "official.tar.gz": False}
    assert files.status(tmp_path / "official")[2].needed


def test_a_damaged_archive_is_refused_and_a_missing_one_downloaded(tmp_path, monkeypatch):
    monkeypatch.delenv("FRCL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _, contents = small(HUNDRED, archive100, ("a-train", "a-test"))
    with mirror({"/official.tar.gz": contents["official.tar.gz"]}) as server:
        files, _ = small(HUNDRED, archive100, ("a-train", "a-test"), server.address)
        put(tmp_path / "given", {"official.tar.gz": archive100(Parts(HUNDRED.test, HUNDRED.train))})
        assert "its sha256 of images is" in files.files[0].find(tmp_path / "given").problems[0]
        status = fetch("split-cifar100", tmp_path / "given", datasets=[files])
    assert status[2].verified
    assert (tmp_path / "given" / "cifar" / "official.tar.gz").read_bytes() == contents["official.tar.gz"]


def test_split_cifar_is_cifar10_and_then_five_tasks_with_labels_of_their_own():
    tasks = split_cifar_tasks(TEN, HUNDRED)
    assert [task.name for task in tasks][:3] == ["CIFAR-10", "CIFAR-100 0–9", "CIFAR-100 10–19"]
    assert [sorted(set(task.test.y.tolist())) for task in tasks] == [list(range(k, k + 10)) for k in range(0, 60, 10)]
    own = HUNDRED.train.pixels[(HUNDRED.train.labels >= 10) & (HUNDRED.train.labels < 20)]
    assert np.array_equal(tasks[2].learning.x.permute(0, 2, 3, 1).numpy(), own)
    pairs = cifar10_tasks(TEN)
    assert [task.name for task in pairs] == ["0/1", "2/3", "4/5", "6/7", "8/9"]
    assert sum(len(task.learning) for task in pairs) == 50


@pytest.mark.parametrize("train_on", ["train", "train+validation"])
def test_a_tenth_is_for_validation_and_pixels_are_in_the_unit_interval(train_on):
    given = "split-cifar", split_cifar_tasks(TEN, HUNDRED), BenchmarkOptions(train_on=train_on)
    stream = image_tasks(*given, 3)
    task = stream.task(0)
    assert len(task.validation) == 5
    assert len(task.train) == task.size == (45 if train_on == "train" else 50)
    assert task.train.x.shape[1:] == stream.input_shape == (3, 32, 32)
    x = torch.from_numpy(TEN.test.pixels).permute(0, 3, 1, 2).float() / 255
    assert torch.equal(stream.test_split(0).x, x)
    assert torch.equal(task.test.x, x)
    again, other = stream.task(0), image_tasks(*given, 4).task(0)
    assert torch.equal(again.validation.x, task.validation.x)
    assert not torch.equal(other.validation.x, task.validation.x)


def test_seeds_share_the_images_that_they_use_at_the_same_time():
    tasks = split_cifar_tasks(TEN, HUNDRED)
    one, other = (image_tasks("split-cifar", tasks, BenchmarkOptions(), seed) for seed in (0, 1))
    first, second = one.task(0).train.x, other.task(0).train.x
    assert first.data_ptr() == second.data_ptr()
    assert first.data_ptr() != one.task(1).train.x.data_ptr()
    kept = weakref.ref(first)
    del first, second
    assert kept() is None


FOLDER = Path(os.environ.get("FRCL_DATA", "nowhere")) / "cifar"
needs_cifar = pytest.mark.skipif(not (FOLDER / "cifar10-test.npz").is_file(), reason="FRCL_DATA has no CIFAR files")
# sha256 of pixels [n, 32, 32, 3] and labels, in the original order
TEST10 = "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04"
TEST50 = "8d5821f2bb17a6b196c1a532a42fc7500336dd689f86a8b54c5ef207738e233b"


@needs_cifar
@pytest.mark.real_data
def test_the_real_test_images_have_the_published_pixels():
    for name, digest in (("cifar10-test.npz", TEST10), ("cifar100-first50-test.npz", TEST50)):
        found = read_compact((FOLDER / name).read_bytes(), name)
        assert hashlib.sha256(found.pixels.tobytes()).hexdigest() == digest
    assert CIFAR10.files[0].digest.split()[2] == TEST10


@needs_cifar
@pytest.mark.real_data
@pytest.mark.slow
def test_the_real_benchmarks_have_the_published_pixels_and_sizes():
    ten = read_cifar(CIFAR10)
    assert ten.digest() == CIFAR10.files[0].digest
    stream = open_benchmark("split-cifar", seed=0)
    assert [len(stream.task(k).train) for k in range(6)] == [50_000, *[5_000] * 5]
    assert [len(stream.test_split(k)) for k in range(6)] == [10_000, *[1_000] * 5]
    hundred = open_benchmark("split-cifar100", seed=0)
    assert len(hundred) in (5, 10)
    with pytest.raises(OptionError, match="tasks=11 is too many"):
        open_benchmark("split-cifar100", BenchmarkOptions(tasks=11), seed=0)


def test_the_benchmarks_name_their_data_sets():
    assert BENCHMARKS["split-cifar"].datasets == ("cifar10", "cifar100")
    assert all(file.mirrors for dataset in (CIFAR10, CIFAR100) for file in dataset.files)
