"""DeepSpeed's operation pin_memory: tensors in pages that the kernel does not swap out."""

from __future__ import annotations

import threading

import torch

from .. import HostMemory

__all__ = ["pin_handle"]

_lock = threading.Lock()
_ranges: dict[int, int] = {}  # address: bytes, of tensors that were not freed


def new_cpu_locked_tensor(num_elem: int, example_tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of `num_elem` elements of the example's type, with zeros. Pinned, as far as the limit of locked memory
    allows it. Its memory lives as long as the last tensor in it."""
    size = num_elem * example_tensor.element_size()
    if size == 0:
        return torch.empty(0, dtype=example_tensor.dtype)
    memory = HostMemory(size, pinning="preferred")
    tensor = torch.frombuffer(memory, dtype=example_tensor.dtype, count=num_elem)
    with _lock:
        _ranges[memory.address] = size
    return tensor


def free_cpu_locked_tensor(tensor: torch.Tensor) -> bool:
    """The tensor is not pinned any more, as is_pinned() tells. Whether it was made by new_cpu_locked_tensor()."""
    return free_cpu_locked_tensor_by_ptr(tensor.data_ptr())


def free_cpu_locked_tensor_by_ptr(address: int) -> bool:
    with _lock:
        return _ranges.pop(address, None) is not None


def is_pinned(buffer: torch.Tensor) -> bool:
    """Whether the tensor is in memory of new_cpu_locked_tensor(), or pinned by PyTorch."""
    if buffer.device.type == "cpu":
        begin, size = buffer.data_ptr(), buffer.numel() * buffer.element_size()
        with _lock:
            if any(first <= begin and begin + size <= first + bytes_ for first, bytes_ in _ranges.items()):
                return True
    return buffer.is_pinned()


class pin_handle:  # noqa: N801, DeepSpeed's name
    """DeepSpeed's class of the same name."""

    new_cpu_locked_tensor = staticmethod(new_cpu_locked_tensor)
    free_cpu_locked_tensor = staticmethod(free_cpu_locked_tensor)
    free_cpu_locked_tensor_by_ptr = staticmethod(free_cpu_locked_tensor_by_ptr)
    is_pinned = staticmethod(is_pinned)
