"""Tables of Split-CIFAR and of the pre-trained network: their cells, and the rows that are made from results."""

import pytest

from paper.cifar import CIFAR, METHODS, PRETRAINED
from paper.quick import reduced


def test_every_method_is_measured_without_and_with_the_same_augmentation():
    plain, augmented = CIFAR.cells[: len(METHODS)], CIFAR.cells[len(METHODS) :]
    assert [cell.method for cell in plain] == [cell.method for cell in augmented] == list(METHODS)
    for cell in (*plain, *augmented):
        config = cell.config()
        assert config.network.kind == "cifar"
        assert config.network.widths == (32, 64, 512)
        assert (config.stream.crop, config.stream.flip) == ((4, True) if cell in augmented else (0, False))
        assert getattr(config.learner, "points", 200) == 200 or cell.method == "vcl"


def test_the_pretrained_network_is_frozen_or_its_last_stage_is_trained():
    configs = {cell.name.removeprefix("pretrained-"): cell.config() for cell in PRETRAINED.cells}
    assert {name: config.network.trained for name, config in configs.items()} == {
        "exact-gp": "none", "frcl-plus-frozen": "none", "frcl-plus-tuned": "last", "finetune": "last",
    }  # fmt: skip
    assert all(config.stream.tasks == 5 for config in configs.values())
    assert configs["exact-gp"].learner.of_network
    tuned, plain = configs["frcl-plus-tuned"].learner, configs["finetune"].learner
    for option in ("steps", "batch_size", "lr", "backbone_lr", "lr_decay"):
        assert getattr(tuned, option) == getattr(plain, option)


@pytest.mark.parametrize("table", [CIFAR, PRETRAINED], ids=lambda table: table.name)
def test_a_quick_run_has_a_small_network_of_its_own(table):
    small = reduced(table)
    assert 0 < len(small.cells) < len(table.cells)
    for cell in small.cells:
        assert cell.config().network.kind == "cifar"
        assert cell.config().stream.tasks == 2


@pytest.mark.parametrize("table", [CIFAR, PRETRAINED], ids=lambda table: table.name)
def test_rows_show_what_was_measured_beside_what_was_published(table, tmp_path):
    text = "\n".join(table.view(table, tmp_path, False))
    assert text.count("not measured") == len(table.cells)
    if table is CIFAR:
        assert "| FROMP, Pan et al. 2020 (published) | 76.2 |" in text
        assert "| S-FSVI, Rudner et al. 2022 (published) | 77.57 ± 0.84 |" in text
