"""DeepSpeed's operation cpu_adam, by Penstock's kernels."""

from __future__ import annotations

import torch

from .. import Workers
from .._core import _adam_step
from ..errors import InvalidArgument

__all__ = ["adam_rollback", "adam_update", "create_adam", "destroy_adam"]

_dtypes = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_optimizers: dict[int, bool] = {}  # by DeepSpeed's number: whether the decay is decoupled
_workers: dict[int, Workers] = {}  # by the number of threads


def create_adam(optimizer_id: int, alpha: float = 1e-3, betta1: float = 0.9, betta2: float = 0.999, eps: float = 1e-8,
                weight_decay: float = 0.0, adamw_mode: bool = True, should_log: bool = True) -> int:
    """Notes the mode of an optimizer; adam_update() has the other values again."""
    _optimizers[optimizer_id] = adamw_mode
    if should_log:
        print(f"Adam optimizer #{optimizer_id} is updated by Penstock: lr={alpha:g}, betas=({betta1:g}, {betta2:g}), "
              f"weight_decay={weight_decay:g}, {'AdamW' if adamw_mode else 'Adam'}")
    return 0


def destroy_adam(optimizer_id: int) -> int:
    _optimizers.pop(optimizer_id, None)
    return 0


def adam_update(optimizer_id: int, step: int, lr: float, beta1: float, beta2: float, epsilon: float, weight_decay: float,
                bias_correction: bool, params: torch.Tensor, grads: torch.Tensor, exp_avg: torch.Tensor,
                exp_avg_sq: torch.Tensor) -> int:
    """One step in place, on the threads that PyTorch has. Raises InvalidArgument for tensors that cannot be updated in
    place, for those of different sizes, and for moments of different types."""
    if optimizer_id not in _optimizers:
        _refuse("there is no such optimizer", "optimizer_id", str(optimizer_id))
    _check(params, params, grads, exp_avg, exp_avg_sq)
    if params.numel() == 0:
        return 0
    grads = grads.contiguous()
    if grads.dtype not in _dtypes:
        grads = grads.float()
    threads = torch.get_num_threads()
    if threads not in _workers:
        _workers[threads] = Workers(threads)
    _adam_step(params.data_ptr(), grads.data_ptr(), exp_avg.data_ptr(), exp_avg_sq.data_ptr(), params.numel(),
               _dtypes[params.dtype], _dtypes[grads.dtype], _dtypes[exp_avg.dtype], step, lr, beta1, beta2, epsilon,
               weight_decay, _optimizers[optimizer_id], bias_correction, _workers[threads])
    return 0


def adam_rollback(optimizer_id: int, step: int, lr: float, beta1: float, beta2: float, epsilon: float,
                  weight_decay: float, bias_correction: bool, params: torch.Tensor, grads: torch.Tensor,
                  exp_avg: torch.Tensor, exp_avg_sq: torch.Tensor) -> int:
    """Undoes step `step` of AdamW, but for rounding: the formula of adam_update() solved for the values before it.
    DeepSpeed's own does nothing, and returns -1, unless all tensors are float32."""
    _check(params, params, grads, exp_avg, exp_avg_sq)
    with torch.no_grad():
        gradient, m, v = grads.float(), exp_avg.float(), exp_avg_sq.float()
        correction1 = 1 - beta1**step if bias_correction else 1.0
        correction2 = 1 - beta2**step if bias_correction else 1.0
        update = (m / correction1).div_((v / correction2).sqrt_().add_(epsilon))
        before = params.float().add(update, alpha=lr).div_(1 - lr * weight_decay)
        params.copy_(before.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0))
        exp_avg.copy_(m.sub(gradient, alpha=1 - beta1).div_(beta1))
        exp_avg_sq.copy_(v.addcmul(gradient, gradient, value=-(1 - beta2)).div_(beta2).clamp_(min=0))
    return 0


def _check(params: torch.Tensor, *tensors: torch.Tensor) -> None:
    for name, tensor in zip(("params", "grads", "exp_avg", "exp_avg_sq"), tensors):
        if tensor.device.type != "cpu":
            _refuse("it is not in host memory", name, str(tensor.device))
        if tensor.numel() != params.numel():
            _refuse("its size is another one", name, f"{tensor.numel()} elements, and {params.numel()} of params")
        if name != "grads" and (tensor.dtype not in _dtypes or not tensor.is_contiguous()):
            _refuse("it cannot be updated in place", name, f"{tensor.dtype}, strides {tensor.stride()}")
    first, second = tensors[2:]
    if first.dtype != second.dtype:
        _refuse("the moments have different types", "exp_avg_sq", f"{second.dtype}, and {first.dtype} of exp_avg")


def _refuse(reason: str, name: str, got: str) -> None:
    raise InvalidArgument(f"{reason}: {name}, got {got} [cpu_adam]", operation="cpu_adam", object=name, reason=reason,
                          got=got)
