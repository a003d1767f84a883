"""What a notebook shows of a learner and of a prediction: small, escaped, and true."""

from html.parser import HTMLParser

import pytest
import torch

import frcl
from frcl.methods import default_options, make_learner
from frcl.options import changed

SMALL = {"points": 5, "steps": 10, "batch_size": 8}


class Tables(HTMLParser):
    """The cells of all tables of a page, and the tags that it has."""

    def __init__(self, page):
        super().__init__()
        self.rows, self.tags, self._cell = [], set(), False
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        self._cell = tag in ("td", "th")
        if self._cell:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self._cell = False

    def handle_data(self, data):
        if self._cell:
            self.rows[-1][-1] += data


def shown(item):
    page = item._repr_html_()
    assert len(page) < 5_000, "small"
    found = Tables(page)
    assert found.tags <= {"p", "table", "tr", "th", "td"}, "no label is taken for a tag"
    return found.rows, page


@pytest.fixture
def data(generator):
    x = torch.randn(60, 3, generator=generator)
    return x, ["<script>alert(1)</script>" if one > 0 else "b&b" for one in x[:, 0].tolist()]


def test_a_learner_and_its_predictions(data):
    x, y = data
    learner = frcl.FRCL(frcl.MLP(3, [8], seed=0), **SMALL)
    shown(learner)
    learner.fit(x, y)
    rows, page = shown(learner)
    assert ["points", f"{learner.memory_parts()['points']:,}"] in [row[:2] for row in rows]
    assert ["0", "60", "5", "<script>alert(1)</script>, b&b", f"{learner.memory_bytes():,}"] in rows
    assert "1 tasks learned" in page
    prediction = learner.predict(x)
    rows, page = shown(prediction)
    assert "… and 50 more" in page
    assert rows[0] == ["input", "label", "probability", "task", "novelty"]
    assert len(rows) == 11
    for i, row in enumerate(rows[1:]):
        assert row[1] == prediction.labels[i]
        assert float(row[2]) == pytest.approx(float(prediction.probs[i].max()), abs=1e-4)
    assert [row[1] for row in shown(learner.predict(x[:3], task=0))[0]][1:] == list(prediction.labels[:3])


def test_numbers(data):
    x, _ = data
    learner = frcl.FRCL(frcl.MLP(3, [8], seed=0), **SMALL)
    learner.fit(x, x[:, :1].numpy())
    prediction = learner.predict(x[:4], task=0)
    rows, _ = shown(prediction)
    assert rows[0][:3] == ["input", "mean", "std"]
    for i, row in enumerate(rows[1:]):
        assert float(row[1]) == pytest.approx(float(prediction.target_mean[i, 0]), rel=1e-3)
        assert float(row[2]) == pytest.approx(float(prediction.target_variance[i, 0].sqrt()), rel=1e-3)


def test_other_learners(data):
    x, y = data
    learners = [
        frcl.Ensemble(frcl.MLP(3, [8], seed=0), members=2, **SMALL),
        frcl.ExactGP(),
        make_learner(frcl.MLP(3, [8], seed=0), changed(default_options("ewc"), {"steps": 5}), seed=0, method="ewc"),
    ]
    for learner in learners:
        learner.fit(x, y)
        shown(learner)
        assert shown(learner.predict(x))[0][1][1] in ("<script>alert(1)</script>", "b&b")
