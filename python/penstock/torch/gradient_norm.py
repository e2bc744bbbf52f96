"""The norm of all gradients, by which they are clipped."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from .. import Workers
from .._core import _square_sum
from .offloaded_states import dtype_names, is_dense, is_on_host


def gradient_norm(gradients: Iterable[torch.Tensor], workers: Workers) -> float:
    """The 2-norm of the gradients together. Of DTensors it is that of all ranks, which call this together."""
    squares, others = [], []
    for gradient in gradients:
        if hasattr(gradient, "to_local") or not is_on_host(gradient) or not is_dense(gradient) \
                or gradient.dtype not in dtype_names:
            others.append(gradient)
        else:
            squares.append(_square_sum(gradient.data_ptr(), dtype_names[gradient.dtype], gradient.numel(), workers))
    for kind in (lambda one: hasattr(one, "full_tensor"), lambda one: not hasattr(one, "full_tensor")):
        alike = [one for one in others if kind(one)]
        if alike:
            norm = torch.nn.utils.get_total_norm(alike)
            squares.append(float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm) ** 2)
    return math.sqrt(math.fsum(squares))


def clip_factor(norm: float, max_norm: float) -> float:
    """What torch.nn.utils.clip_grad_norm_ multiplies gradients by; 1 for a norm that is not finite."""
    return min(1.0, max_norm / (norm + 1e-6)) if math.isfinite(norm) else 1.0
