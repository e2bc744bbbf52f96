"""Updates of AdamW in the backward, as gradients come."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from ..errors import FailedState, Unsupported
from .arguments import hyperparameters_of, refuse
from .offloaded_states import Update

if TYPE_CHECKING:
    from .adamw import AdamW


def update_as_gradients_come(optimizer: AdamW, first_group: int = 0) -> list[torch.Tensor]:
    """From now on, for the parameters that are trained, of this group and those after it. Returns those for which it was
    not so before."""
    itself = weakref.ref(optimizer)  # parameters may outlive it
    added = []
    for number in range(first_group, len(optimizer.param_groups)):
        for parameter in optimizer.param_groups[number]["params"]:
            if parameter.requires_grad and parameter not in optimizer._hooked:
                parameter.register_post_accumulate_grad_hook(  # load_state_dict() makes the groups again
                    lambda one, number=number: _update_and_free(itself(), one, number))
                optimizer._hooked.add(parameter)
                added.append(parameter)
    return added


@torch.no_grad()
def _update_and_free(optimizer: AdamW | None, parameter: torch.Tensor, group: int) -> None:
    if optimizer is None or optimizer._is_closed:
        return
    if parameter.grad is None:
        refuse("another optimizer has taken its gradient", optimizer._text_of(parameter), wanted="one with update_in_backward",
               advice="close() the other one", kind=FailedState)
    if parameter in optimizer._updated:
        parameter.grad = None  # else step() would apply it
        refuse("its gradient has come twice before step()", optimizer._text_of(parameter), got="a second one, which is lost",
               advice="update_in_backward takes one backward a step: call step() after each", kind=FailedState)
    if not hasattr(parameter, "to_local") and torch.distributed.is_available() and torch.distributed.is_initialized() \
            and torch.distributed.get_world_size() > 1:
        refuse("gradients are averaged between ranks after the backward has updated their parameters",
               "update_in_backward", wanted="one process, or FSDP2", advice="leave it out; DDP needs the whole gradient",
               kind=Unsupported)
    with optimizer._lock:  # PyTorch has a thread for each device
        optimizer._check_whole()
        optimizer._updated.add(parameter)
        states = optimizer._states_of(parameter)
        number = optimizer._numbers.setdefault(states, states.completed + 1)
        try:
            hyperparameters = hyperparameters_of(optimizer.param_groups[group])
            optimizer._run([Update(states, number, parameter, parameter.grad, hyperparameters)])
        finally:
            optimizer._end_updates()
            if states.completed == number:
                del optimizer._numbers[states]
                parameter.grad = None
    optimizer._warn()
