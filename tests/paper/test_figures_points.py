"""Figures 4 and 6: searches against brute force, images against the data, the pictures from their sheets."""

import os
from collections import Counter

import numpy as np
import pytest
import torch

from frcl.data import BenchmarkOptions, open_benchmark
from frcl.data.files import MNIST, OMNIGLOT
from frcl.data.streams import load_digits, read_mnist
from frcl.data.tasks import Split
from frcl.learners.options import FRCLOptions
from frcl.report.drawing import style
from paper.figures import points
from paper.figures.base import make_figure
from paper.figures.draw_points import GAP, draw_figure_4, draw_figure_6, from_hex, mosaic
from paper.figures.points import FIGURES, Learned, Sizes, classes_covered, projected, searched, to_hex
from paper.figures.sheets import Rows, Sheet, read_sheet
from paper.measure import Place

FIGURE_4, FIGURE_6 = FIGURES
SMALL = Sizes(shown=2, counted=6, cloud=60, learner={"points": 5, "steps": 20, "search_steps": 60})


def at_hand(*files) -> bool:
    return bool(os.environ.get("FRCL_DATA")) and all(file.find(None).verified for file in files)


needs_mnist = pytest.mark.skipif(
    not at_hand(*MNIST.files), reason="FRCL_DATA names no folder with the four MNIST files"
)
needs_omniglot = pytest.mark.skipif(
    not at_hand(*OMNIGLOT.compact), reason="FRCL_DATA names no folder with omniglot28.npz"
)


@pytest.fixture
def on_digits(monkeypatch, tmp_path) -> Place:
    """Figure 4 at a small size, on data that needs no download."""
    monkeypatch.setattr(points, "PERMUTED", "permuted-digits")
    monkeypatch.setattr(points, "QUICK_SIZES", SMALL)
    return Place(tmp_path / "results", tmp_path / "runs", quick=True)


def task(N: int, K: int, seed: int = 3, **options) -> Learned:
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (N,), generator=g)
    Phi = torch.randn(N, K, generator=g) + 3 * torch.randn(4, K, generator=g)[y]
    return Learned(Split(torch.rand(N, 9, generator=g), y), Phi, FRCLOptions(**options))


# -- the parts ----------------------------------------------------------------------------------------------------


def test_hexadecimal_images_keep_every_byte():
    values = torch.arange(256).flip(0).reshape(16, 16)
    text = to_hex(values / 255)
    assert [int(text[2 * k : 2 * k + 2], 16) for k in range(256)] == values.flatten().tolist()
    assert np.array_equal(np.rint(255 * from_hex(text)), values.numpy())
    assert to_hex(torch.tensor([0.5, -0.1, 1.2, 0.999])) == "8000ffff"  # rounded, and kept within a byte


def test_classes_are_counted_as_by_hand():
    g = torch.Generator().manual_seed(0)
    y = torch.randint(10, (50,), generator=g)
    for _ in range(20):
        index = torch.randperm(50, generator=g)[:7]
        assert classes_covered(y, index) == len({int(y[row]) for row in index})


def test_searches_end_at_the_trace_term_they_claim():
    one = task(80, 6, u_noise=0.01, search_steps=200)
    K = one.Phi.double() @ one.Phi.double().mT

    def direct(index):
        inverse = torch.linalg.inv(K[index][:, index] + 0.01 * torch.eye(len(index), dtype=torch.float64))
        return float((K.diagonal() - ((K[:, index] @ inverse) * K[:, index]).sum(1)).sum())

    done = searched(one, 4, 3)
    assert len({tuple(search.start.tolist()) for search in done}) == 3
    for search in done:
        (_, start, before), (_, end, after) = search.ends
        assert before == pytest.approx(direct(start), rel=1e-6)
        assert after == pytest.approx(direct(end), rel=1e-6)
        assert after < before
        assert len(set(end.tolist())) == 4


def test_balanced_starts_have_as_many_of_each_class():
    one = task(80, 6)
    (search,) = searched(one, 12, 1, one.train.y)
    assert Counter(one.train.y[search.start].tolist()) == {0: 3, 1: 3, 2: 3, 3: 3}


def test_rows_of_the_projection_are_those_asked_for():
    one = task(120, 5)
    index = torch.randperm(120, generator=torch.Generator().manual_seed(1))[:60]
    at = torch.from_numpy(projected(10 * one.Phi, index))
    nearest = (torch.cdist(at, at) + 1e9 * torch.eye(60)).argmin(1)
    labels = one.train.y[index]
    assert float((labels[nearest] == labels).double().mean()) > 0.9  # classes are far apart; 0.25 if rows were mixed up


def test_a_mosaic_has_each_image_in_its_place():
    columns = [[np.full((3, 3), 10 * c + r) for r in range(height)] for c, height in enumerate((2, 0, 1))]
    for upwards in (False, True):
        found = mosaic(columns, upwards=upwards)
        assert found.shape == (2 * 3 + GAP, 3 * 3 + 2 * GAP)
        expected = np.full(found.shape, np.nan)
        for column, row, value in ((0, 0, 0), (0, 1, 1), (2, 0, 20)):
            top = (1 - row if upwards else row) * (3 + GAP)
            expected[top : top + 3, column * (3 + GAP) : column * (3 + GAP) + 3] = value
        assert np.array_equal(found, expected, equal_nan=True)


def test_rows_of_several_kinds():
    rows = Rows({"steps": 5}, "x")
    rows.add("thing", x=0.123456789, name="a")
    assert rows.sheet() == Sheet(
        ("kind", "name", "value", "x"), (("setting", "steps", "5", ""), ("thing", "a", "", "0.123457"))
    )
    assert rows.sheet().settings() == {"steps": "5"}
    with pytest.raises(ValueError, match="no column y"):
        rows.add("thing", y=1)


# -- Figure 4 -----------------------------------------------------------------------------------------------------


def check_points(numbers: Sheet, x: torch.Tensor, y: torch.Tensor, shown: int) -> None:
    """Images and labels are those of the examples; the number of classes is that of the listed points."""
    listed = numbers.where(kind="point")
    for row, label, image in zip(*(listed.column(name) for name in ("value", "label", "image")), strict=True):
        assert int(label) == int(y[int(row)])
        assert list(bytes.fromhex(image)) == (255 * x[int(row)]).round().int().flatten().tolist()
    for start in range(shown):
        for which in ("random", "trace"):
            labels = listed.where(start=str(start), which=which).column("label")
            counted = numbers.where(kind="classes", start=str(start), which=which).column("value")
            assert counted == [str(len(set(labels)))]


def test_figure_4_shows_the_digits_that_were_kept(on_digits):
    numbers = points.measure_figure_4(on_digits)
    base = load_digits(0).train
    check_points(numbers, base.x, base.y, shown=2)
    assert len(numbers.where(kind="point").rows) == 2 * 2 * 5
    assert len(numbers.where(kind="classes", which="trace").rows) == 6
    cloud = numbers.where(kind="example")
    assert len(cloud.rows) == 60
    placed = numbers.where(kind="point", start="0")
    everything = [*cloud.floats("x"), *cloud.floats("y"), *placed.floats("x"), *placed.floats("y")]
    assert np.isfinite(everything).all()
    assert set(numbers.where(kind="point", start="1").column("x")) == {""}
    criterion = [numbers.where(kind="criterion", which=which).floats("value") for which in ("random", "trace")]
    assert all(after < before for before, after in zip(*criterion, strict=True))
    assert points.measure_figure_4(on_digits) == numbers


def test_a_point_stands_where_its_features_are(on_digits, monkeypatch):
    """With the identity for t-SNE, each coordinate can be looked up."""
    seen = {}

    def first_two(Phi, index):
        seen["Phi"] = Phi
        return Phi[index, :2].double().numpy()

    monkeypatch.setattr(points, "projected", first_two)
    numbers = points.measure_figure_4(on_digits)
    base = load_digits(0).train
    sets = [numbers.where(kind="point", start="0", which=which) for which in ("random", "trace")]
    for own in (*sets, numbers.where(kind="example")):
        rows = [int(value) for value in own.column("value")]
        assert own.floats("x") == pytest.approx(seen["Phi"][rows, 0].tolist(), rel=1e-5)
        assert own.floats("y") == pytest.approx(seen["Phi"][rows, 1].tolist(), rel=1e-5)
        assert own.floats("label") == base.y[rows].tolist()


def test_the_words_of_figure_4_say_what_was_counted(on_digits):
    numbers = points.measure_figure_4(on_digits)
    with style():
        drawing = draw_figure_4(numbers)
    for which, name in (("random", "random start"), ("trace", "optimised by the trace")):
        counted = [int(value) for value in numbers.where(kind="classes", which=which).column("value")]
        most = max(int(value) for value in numbers.where(kind="classes").column("value"))
        said = f"{name} {sum(counted) / 6:.2f} classes on average, {most} in {counted.count(most)} of 6"
        assert said in drawing.text
    a, b = (np.array(numbers.where(kind="criterion", which=which).floats("value")) for which in ("random", "trace"))
    assert f"by {100 * np.mean(1 - b / a):.0f}\N{NO-BREAK SPACE}%" in drawing.text
    assert "20 steps, 5 inducing points, 60 proposals" in drawing.caption


def test_files_of_figure_4_are_the_same_every_time(on_digits, tmp_path):
    other = Place(tmp_path / "other", tmp_path / "runs", quick=True)
    for one, two in zip(make_figure(FIGURE_4, on_digits), make_figure(FIGURE_4, other), strict=True):
        assert one.read_bytes() == two.read_bytes()


@pytest.mark.slow
@pytest.mark.real_data
@needs_mnist
def test_quick_figure_4_on_mnist(tmp_path):
    place = Place(tmp_path / "results", tmp_path / "runs", quick=True)
    kept, *_ = make_figure(FIGURE_4, place)
    learning, _ = read_mnist(None)
    check_points(read_sheet(kept), learning.x, learning.y, shown=2)


# -- Figure 6 -----------------------------------------------------------------------------------------------------


def test_figure_6_counts_the_characters():
    rows = Rows({"each": 2, "characters": 3, "steps": 7, "search_steps": 9}, "which", "label", "image")
    for which, labels, value in (("random", (0, 0, 1, 1, 2, 2), 8.0), ("trace", (0, 2, 2, 2, 2, 0), 2.0)):
        rows.add("criterion", which=which, value=value)
        for label in labels:
            rows.add("point", which=which, label=label, value=0, image=to_hex(torch.rand(7, 7)))
    with style():
        drawing = draw_figure_6(rows.sheet())
    assert "by 75\N{NO-BREAK SPACE}% and ends with points of 2 of 3 characters, 0 to 4 of each" in drawing.text


@pytest.mark.real_data
@needs_omniglot
def test_quick_figure_6_on_omniglot(tmp_path):
    place = Place(tmp_path / "results", tmp_path / "runs", quick=True)
    kept, *_ = make_figure(FIGURE_6, place)
    numbers = read_sheet(kept)
    options = BenchmarkOptions(augment=2, alphabet_order="alphabetical")
    benchmark = open_benchmark("omniglot", options, seed=0)
    greek = benchmark.task(benchmark.task_names.index("Greek")).train
    random = numbers.where(kind="point", which="random")
    assert Counter(random.column("label")) == {str(label): 3 for label in range(24)}
    assert len(numbers.where(kind="point", which="trace").rows) == 72
    listed = numbers.where(kind="point")
    for row, label, image in zip(*(listed.column(name) for name in ("value", "label", "image")), strict=True):
        assert int(label) == int(greek.y[int(row)] - greek.y.min())
        assert list(bytes.fromhex(image)) == (255 * greek.x[int(row)]).round().int().flatten().tolist()
