"""ZeRO-3 for a torch.nn.Module."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence

import torch

from .._core import Config, ProcessGroup
from .shard_arguments import text_of
from .sharded import Sharded


def shard(module: torch.nn.Module, config: str | os.PathLike | dict, *, whole: Sequence[type] = (),
          weight_decay_of: Callable[[str, torch.nn.Parameter], float | None] | None = None) -> Sharded:
    """Trains a module by ZeRO-3: its parameters are gathered for the forward and backward of the module that has them,
    its gradients are reduced as they come, and the states are updated where they are kept, in host memory or on drives.

        model = penstock.torch.shard(model, "ds_config.json")
        for batch, target in data:
            loss = loss_of(model(batch), target)
            model.backward(loss)
            model.step()

    config: the ds_config.json of DeepSpeed, a path or a dictionary; it has the optimizer too. The ranks are those of the
    launcher (torchrun, mpirun, srun; docs/processes.md), each with its own batches; without one there is one rank. All
    ranks begin with the same values. Parameters (float32, bfloat16, float16) and all floating-point buffers get the type of
    the configuration.

    whole: classes of modules whose parameters are gathered as one unit, such as the block of a transformer; of other
    modules those that each has itself. weight_decay_of(name, parameter): its weight decay, or None for that of the
    configuration. Both are the same on all ranks, and so is the order in which a step uses modules: whole=(MixtureOfExperts,)
    where it depends on the data.

    Frozen parameters, tied ones, buffers, activation checkpointing and modules that are used several times work as in
    PyTorch. Outside of its module's forward and of the backward a parameter's values are NaN, but for Sharded.gathered().

    Raises InvalidConfig; InvalidArgument and Unsupported, naming the parameter, before anything changes; BudgetTooSmall
    and NoSpace, with the required size."""
    text, name = text_of(config)
    group = _process_group().split(0) if _has_launcher() else None  # a group has one engine
    ranks = group.ranks if group is not None else 1
    return Sharded(module, Config(text, name, ranks), group, whole, weight_decay_of)


@functools.cache
def _process_group() -> ProcessGroup:
    """Of all sharded modules of this process."""
    return ProcessGroup()


def _has_launcher() -> bool:
    return any(name in os.environ for name in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_ID"))
