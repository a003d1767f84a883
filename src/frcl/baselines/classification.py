"""Classification with a linear head per task: its likelihood, where a head starts, terms of the loss, predictions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from frcl.engine.program import Terms
from frcl.learners.types import Prediction
from frcl.likelihoods import Softmax
from frcl.seeding import Streams, fork

CHUNK = 4096  # inputs that pass through the network at once outside of training


def initial_head(classes: int, features: int, streams: Streams, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A linear head [C, K] with small random weights and no bias (the last column)."""
    draws = torch.randn(classes, features, generator=streams["posterior"], dtype=dtype, device=device)
    head = draws / math.sqrt(features)
    head[:, -1] = 0.0
    return head


def plain_terms(nll: Tensor, penalty: Tensor | None = None) -> Terms:
    """The terms of a network with a penalty: what FRCL calls "KL past" is the penalty."""
    zero = nll.new_zeros(())
    return Terms(nll, -nll, zero, zero) if penalty is None else Terms(nll + penalty, -nll, zero, penalty)


def sampled_prediction(f: Tensor, likelihood: Softmax) -> Prediction:
    """The mean over draws of the network, functions [S, n, C]; the variance is that between the draws."""
    return _prediction(f.mean(0), f.var(0, correction=0), f.softmax(-1).mean(0), likelihood)


def gaussian_prediction(mean: Tensor, variance: Tensor, likelihood: Softmax, seed: int) -> Prediction:
    """From independent Gaussian functions: the mean of the softmax by Monte Carlo, the same draws at every call."""
    shape = likelihood.draws_shape(1, training=False)
    draws = torch.randn(shape, generator=fork(seed, "prediction"), dtype=mean.dtype).to(mean.device)
    return _prediction(mean, variance, likelihood.probabilities(mean, variance, draws), likelihood)


def _prediction(mean: Tensor, variance: Tensor, probs: Tensor, likelihood: Softmax) -> Prediction:
    return Prediction(mean, variance, probs, likelihood.decode(probs.argmax(1)), likelihood.classes)
