"""Peers: each row is the published setting, and what of a measured cell stands in which column."""

from paper.cells import Cell
from paper.measure import Place
from paper.peers import COLUMNS, NAMED, NOT_NAMED, PEERS, PEERS_TABLE
from paper.quick import reduced
from paper.store import learned_options, path_of, write_document
from paper_helpers import SMALL, file_of, measured


def shown(results) -> dict[str, dict[str, str]]:
    parts = list(PEERS_TABLE.view(PEERS_TABLE, results, False))
    heading, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in parts[0].splitlines())
    named = zip(PEERS, rows, strict=True)
    return {peer.cell.name: dict(zip(heading, row, strict=True)) for peer, row in named} | {"text": "\n".join(parts)}


def stored(peer, values) -> dict:
    seeds = [{"seed": s, NAMED: 0.99, NOT_NAMED: value} for s, value in enumerate(values)]
    batch = {
        "seeds": list(range(len(values))), "command": "python -m paper peers", "started": "2026-01-02T03:04:05",
        "seconds": {"total": 7.0}, "memory_bytes": {"total": 8630, "per_task": [], "parts": {"points": 8630}},
        "environment": {"device": "cpu", "torch": "2", "commit": "abc"},
    }  # fmt: skip
    kind = {"format": "frcl-cell", "version": 1, "quick": False, "config": learned_options(peer.cell.config())}
    return {**kind, "seeds": seeds, "batches": [batch]}


def test_every_row_is_a_cell_of_its_own_with_the_published_memory_and_steps():
    assert len({peer.cell.name for peer in PEERS}) == len(PEERS)
    for peer in PEERS:
        config = peer.cell.config()
        assert config.method == peer.cell.method
        if "one epoch" in peer.setting:
            assert 5 * config.learner.steps * config.learner.batch_size == 60_000
        if "images in all" in peer.setting:
            assert f"{config.learner.points} images" in peer.setting
        if "images per task" in peer.setting:
            learner, examples = config.learner, 60_000 if peer.benchmark == "permuted-mnist" else 12_000
            assert f"{learner.points} images per task, {learner.steps:,} steps of {learner.batch_size}" in peer.setting
            epochs = int(peer.setting.partition("(")[2].split()[0])
            assert abs(epochs * examples / learner.batch_size / learner.steps - 1) < 0.01
            assert learner.shared_head == ("one head" in peer.setting) == (peer.metric == NOT_NAMED)
            assert config.network.last == "relu"
        if "class-incremental" in peer.setting:
            assert (config.scenario, peer.metric) == ("class", NOT_NAMED)
        if "the same" not in peer.setting:
            assert "-".join(map(str, config.network.widths)) in peer.setting
    assert [cell.config().learner.steps <= 12 for cell in reduced(PEERS_TABLE).cells] == [True] * len(PEERS)


def test_a_measured_peer_stands_beside_its_published_number(tmp_path):
    first, second = PEERS[:2]  # 85.61 ± 1.40 and 80.43 ± 1.89
    write_document(path_of(tmp_path, "peers", first.cell.name), stored(first, [0.84, 0.86]))
    write_document(path_of(tmp_path, "peers", second.cell.name), stored(second, [0.70, 0.72]))
    rows = shown(tmp_path)
    found = rows[first.cell.name]
    assert set(found) == set(COLUMNS)
    assert (found["ours %"], found["agrees"], found["seeds"]) == ("85.00 ± 1.41", "yes", "2 of 5")
    assert (found["with the task %"], found["bytes kept"]) == ("99.00 ± 0.00", "8,630")
    assert rows[second.cell.name]["agrees"] == "differs: -9.43"
    assert f"Why {second.title}" in rows["text"]
    assert rows[PEERS[2].cell.name]["ours %"] == "not measured"


def test_a_peer_is_measured_as_any_other_cell(tmp_path):
    place = Place(tmp_path / "results", tmp_path / "runs")
    learner = {"learner": {"steps": 6, "points": 8, "batch_size": 10}}
    cell = Cell("split-digits-er", "split-digits", "ER", ({"method": "er", "scenario": "class"}, learner, SMALL), (0,))
    measured(place, cell, table="peers")
    entry = file_of(place, cell, "peers")["seeds"][0]
    assert 0 <= entry[NOT_NAMED] <= entry[NAMED] <= 1
