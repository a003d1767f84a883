"""Options resolved from defaults, files and the command line; every mistake has its own message."""

import tomllib

import pytest
import torch

from frcl import OptionError
from frcl.experiment.config import NetworkOptions, parse_setting, read_toml, resolve, to_dict, to_toml
from frcl.experiment.runner import build_network
from frcl.options import from_plain


def test_layers_go_over_each_other():
    config = resolve("split-mnist", {"learner": {"steps": 7, "lr": 1e-2}}, {"learner": {"steps": 9}, "seeds": [4]})
    assert (config.learner.steps, config.learner.lr, config.learner.batch_size) == (9, 1e-2, 100)
    assert config.network.widths == (256, 256)
    assert config.seeds == (4,)


@pytest.mark.parametrize(
    ("benchmark", "widths", "lr", "batch", "steps"),
    [
        ("split-mnist", (256, 256), 5e-4, 100, 3000),
        ("permuted-mnist", (100, 100), 1e-3, 128, 2000),
        ("omniglot", (64, 64, 64, 64), 1e-3, 32, 2500),
    ],
)
def test_defaults_are_those_of_the_papers_appendix(benchmark, widths, lr, batch, steps):
    config = resolve(benchmark)
    assert config.network.widths == widths
    assert (config.learner.lr, config.learner.batch_size, config.learner.steps) == (lr, batch, steps)
    assert config.learner.search_steps == 1000


def test_none_survives_a_file(tmp_path):
    config = resolve("omniglot", {"learner": {"past_tasks_per_step": None}})
    (tmp_path / "config.toml").write_text(to_toml(config))
    layer = read_toml(tmp_path / "config.toml")
    again = resolve(layer.pop("benchmark"), layer)
    assert again == config
    assert again.learner.past_tasks_per_step is None


def test_points_replace_points_per_class():
    assert resolve("omniglot").learner.points_per_class == 2
    assert resolve("omniglot", {"learner": {"points": 30}}).learner.points_per_class is None


def test_a_config_survives_its_file(tmp_path):
    config = resolve(
        "omniglot", {"stream": {"tasks": 3}, "seeds": [5, 6], "data": "/some/where", "detector": {"threshold": 4}}
    )
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config))
    layer = read_toml(path)
    assert resolve(layer.pop("benchmark"), layer) == config
    assert "seed" not in tomllib.loads(path.read_text())["learner"]
    assert to_dict(config)["detector"]["threshold"] == 4.0


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"sedes": [1]}, "unknown option 'sedes'; did you mean 'seeds'"),
        ({"learner": {"pionts": 3}}, "unknown option 'pionts' of method frcl; did you mean 'points'"),
        ({"learner": 3}, "'learner' is a table of options"),
        ({"seeds": []}, "at least one"),
        ({"seeds": [1, 1]}, "different whole numbers"),
        ({"method": "frlc"}, "unknown method 'frlc'; did you mean 'frcl'"),
        ({"network": {"kind": "transformer"}}, "kind='transformer' is unknown; choose one of mlp, conv"),
        ({"network": {"widths": [0]}}, "widths must be whole numbers"),
        ({"stream": {"tasks": 0}}, "tasks must be"),
        ({"detector": {"aggregate": "sum"}}, "aggregate=.sum. is unknown; choose one of max, median, mean"),
        ({"run": {"checkpoint_seconds": "often"}}, "checkpoint_seconds must be a number, not 'often'"),
        ({"hidden_boundaries": 3}, "must be True or False, not 3"),
    ],
)
def test_mistakes_are_named(layer, message):
    with pytest.raises(OptionError, match=message):
        resolve("split-digits", layer)


def test_settings_from_the_command_line():
    assert parse_setting("u_noise=1e-2") == {"learner": {"u_noise": 0.01}}
    assert parse_setting("network.widths=[3, 4]") == {"network": {"widths": [3, 4]}}
    assert parse_setting("selection=trace") == {"learner": {"selection": "trace"}}
    assert parse_setting("first_identity=true") == {"stream": {"first_identity": True}}
    assert parse_setting("seeds=[1,2]") == {"seeds": [1, 2]}
    for text, message in [
        ("noise", "wants key=value"),
        ("=3", "wants key=value"),
        ("u_nois=3", "option 'u_nois' is unknown; did you mean 'u_noise'"),
        ("window=3", "is in learner and detector; write learner.window"),
    ]:
        with pytest.raises(OptionError, match=message):
            parse_setting(text)


def test_unreadable_files(tmp_path):
    with pytest.raises(OptionError, match="cannot read"):
        read_toml(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(OptionError, match=r"cannot read .*bad.toml"):
        read_toml(tmp_path / "bad.toml")


def test_networks_by_options():
    mlp = build_network(NetworkOptions(widths=(7, 5), last="relu"), (4, 4), seed=1)
    assert mlp(torch.rand(2, 4, 4)).shape == (2, 5)
    conv = build_network(NetworkOptions(kind="conv", widths=(3, 3)), (8, 8), seed=1)
    assert conv(torch.rand(2, 8, 8)).shape == (2, 3 * 2 * 2)
    colour = build_network(NetworkOptions(kind="conv", widths=(3,), pooling="valid"), (2, 8, 8), seed=1)
    assert colour(torch.rand(2, 2, 8, 8)).shape == (2, 3 * 3 * 3)
    with pytest.raises(OptionError, match="needs square images"):
        build_network(NetworkOptions(kind="conv"), (784,), seed=1)


def test_whole_numbers_become_floats_and_lists_tuples():
    options = from_plain(NetworkOptions(), {"widths": [3]})
    assert options.widths == (3,)
