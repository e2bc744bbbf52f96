"""What a backward that has raised leaves in PyTorch."""

from __future__ import annotations

import atexit
import contextlib

import torch


def free_what_it_left() -> None:
    """Frees the nodes that were ready in this thread when a hook of the backward has raised.

    PyTorch keeps them until the thread ends. If that is the main thread, it frees their hooks of saved tensors after the
    interpreter, and the process ends by SIGSEGV. A backward takes them out that is the last in the queue, which is in the
    order of sequence numbers."""
    with contextlib.suppress(Exception), torch.enable_grad():  # hides no error of the backward
        last = torch.zeros((), requires_grad=True, device="cpu").neg()
        last.grad_fn._set_sequence_nr(0)
        last.backward()


atexit.register(free_what_it_left)
