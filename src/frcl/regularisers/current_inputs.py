"""Old functions held at the inputs of the current task, where they are known at no cost in memory.

    H_x = (1/B) Σ_b Σ_i D( f_i(x_b; θ_begin, w_i,begin) ‖ f_i(x_b; θ, w_i) )        nats per example, over past tasks i

θ_begin and w_begin are the network and the old heads as they stood when the current task began: constants, with which
the old side is worked out anew for each minibatch by one forward pass. At that moment H_x is zero, and so is its
gradient, since D is least where its two sides are equal.
"""

from __future__ import annotations

from torch import Tensor

from frcl.regularisers.heads import HeadBlock, divergence, functions_at


def current_inputs(Phi_old: Tensor, Phi: Tensor, part: HeadBlock, heads: Tensor, tasks: int) -> Tensor:
    """Estimate of H_x from the tasks in `part`, unbiased: their sum × tasks/|part|.

    Phi_old and Phi [B, K] are the features of the minibatch under θ_begin and θ; part.heads are w_begin, `heads` those
    of now, [|part|, C, K] each.
    """
    apart = divergence(functions_at(Phi_old, part.heads), functions_at(Phi, heads), part)  # [|part|, B]
    return apart.mean(1).sum() * (tasks / part.tasks)
