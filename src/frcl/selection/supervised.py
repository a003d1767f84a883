"""The supervised criteria of Appendix D."""

from __future__ import annotations

from torch import Tensor

from frcl.selection.base import TaskData, criterion
from frcl.summary import belief_from_weights, prior_kl, prior_kl_terms


@criterion("predictive")
def negative_log_predictive(task: TaskData, index: Tensor) -> float:
    """−mean of log p(y | Z) over the examples outside Z."""
    log_p = task.likelihood.log_predictive(*task.moments(index), task.y, task.draws, task.params)
    return -float(log_p[task.others(index)].mean())


@criterion("error", needs_classes=True)
def classification_error(task: TaskData, index: Tensor) -> float:
    """Share of the examples outside Z whose most probable class, predicted through Z, is wrong."""
    probs = task.likelihood.predictive(*task.moments(index), task.draws, task.params).probs
    assert probs is not None
    wrong = probs.argmax(1) != task.y
    return float(wrong[task.others(index)].double().mean())


@criterion("elbo")
def negative_elbo(task: TaskData, index: Tensor) -> float:
    """−Σ_j E[log p(y_j | f_j)] + Σ_c KL(q(u_c | Z) ‖ p(u_c | Z)), the sum over all N examples of the task.

    Where only n of them are at hand their sum stands for it, times N/n.
    """
    belief = belief_from_weights(task.q, task.Phi[index], task.u_noise, task.prior_std)
    kl = float(prior_kl(task.Phi[index][None], prior_kl_terms(belief)))
    expected = task.likelihood.expected_log_prob(*task.moments(index), task.y, task.draws, task.params)
    return kl - task.size * float(expected.double().mean())
