"""What a backward that has raised leaves in PyTorch."""

from __future__ import annotations

import atexit

import torch


def free_what_it_left() -> None:
    """Frees the nodes that were ready in this thread when a hook of the backward has raised.

    PyTorch keeps them until the thread ends. If that is the main thread, it frees their hooks of saved tensors after the
    interpreter, and the process ends by SIGSEGV. A backward takes them out that is the last in the queue, which is in the
    order of sequence numbers."""
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(_itself, _itself):
        last = torch.zeros((), requires_grad=True).mul(1)
    if hasattr(last.grad_fn, "_set_sequence_nr"):
        last.grad_fn._set_sequence_nr(0)
        last.backward()


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


atexit.register(free_what_it_left)
