"""What a commit of a sharded module has beside its parameters: the module's buffers and the trainer's object."""

from __future__ import annotations

import io
import pickle
import re

import torch

from ..errors import Error, FailedState, InvalidArgument
from .shard_arguments import refuse


def to_bytes(module: torch.nn.Module, client) -> bytes:
    """Raises InvalidArgument for an object that could not be loaded again."""
    file = io.BytesIO()
    try:
        torch.save({"client": client, "buffers": _saved_buffers(module)}, file)
        torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    except (pickle.PickleError, AttributeError, TypeError, RecursionError) as error:
        text = re.sub(r"\x1b\[[0-9;]*m", "", str(error) or type(error).__name__)
        found = re.search(r"GLOBAL (\S+)", text)  # of what torch.load refuses
        refuse("it cannot be loaded again", "client", wanted="tensors, numbers, text, and lists and dictionaries of them",
                got=f"an object of {found[1]}" if found else text.splitlines()[0])
    return file.getvalue()


def check(module: torch.nn.Module, given: bytes, kind: type[Error] = InvalidArgument) -> None:
    """Raises an error of this kind where from_bytes() would find other buffers than the module's."""
    saved = {name: tuple(values.shape) for name, values in _read(given)["buffers"].items()}
    own = {name: tuple(values.shape) for name, values in _saved_buffers(module).items()}
    for name in saved.keys() | own.keys():
        if saved.get(name) != own.get(name):
            refuse("the module and the commit have other buffers", name, wanted=f"shape {saved.get(name, 'none')}, of the commit",
                   got=f"{own.get(name, 'none')}", kind=kind)


def from_bytes(module: torch.nn.Module, given: bytes):
    """Sets the buffers, and returns the trainer's object. Raises FailedState, before, for other buffers than the module's."""
    check(module, given, FailedState)
    saved, buffers = _read(given), _saved_buffers(module)
    for name, values in saved["buffers"].items():
        buffers[name].copy_(values)
    return saved["client"]


def _read(given: bytes) -> dict:
    return torch.load(io.BytesIO(given), weights_only=True)


def _saved_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Those that a state_dict() has."""
    return {f"{path}.{name}" if path else name: buffer for path, one in module.named_modules()
            for name, buffer in one.named_buffers(recurse=False) if name not in one._non_persistent_buffers_set}
