"""State dictionaries of AdamW, in the form of torch.optim.AdamW's."""

from __future__ import annotations

import mmap
import os
import tempfile

import torch

from .. import Path, Workers
from .offloaded_states import OffloadedStates, is_on_host, local_of, refuse

_names = {"first_moment": "exp_avg", "second_moment": "exp_avg_sq", "master": "master"}


class Saved:
    """States of one parameter in a dictionary. torch.optim.Optimizer copies and converts tensors that it finds there; of
    this object it takes none."""

    def __init__(self, values: dict) -> None:
        self.step = int(values.get("step", 0))
        self.tensors = {name: values[name] for name in _names.values() if name in values}
        self.has_amsgrad = "max_exp_avg_sq" in values

    def check(self, parameter: torch.Tensor, name: str) -> None:
        """Raises InvalidArgument for states that are not of the parameter."""
        if self.has_amsgrad:
            refuse("its states are of amsgrad, which is not supported", name, got="max_exp_avg_sq")
        for key in ("exp_avg", "exp_avg_sq"):
            if key not in self.tensors:
                refuse("its states lack a moment", name, wanted=key, got=", ".join(self.tensors) or "none",
                       advice="load states of AdamW or Adam")
        for key, tensor in self.tensors.items():
            if not isinstance(tensor, torch.Tensor) or tensor.shape != parameter.shape:
                refuse(f"{key} in the state dictionary has another shape", name, wanted=str(tuple(parameter.shape)),
                       got=str(tuple(getattr(tensor, "shape", ()))), advice="load the states of the same model")


def wrap_state_dict(_, state_dict: dict) -> dict:
    """A hook before Optimizer.load_state_dict()."""
    state = {key: Saved(values) if isinstance(values, dict) else values for key, values in state_dict["state"].items()}
    return {**state_dict, "state": state}


def restore(saved: Saved, parameter: torch.Tensor, states: OffloadedStates, workers: Workers) -> None:
    """Sets the states, and where they have masters of their own, the parameter, tile by tile."""
    local = local_of(parameter.detach())
    flat = local.view(-1)
    sources = {name: local_of(tensor.detach()).reshape(-1) for name, tensor in saved.tensors.items()}
    if not states.has_master or "master" not in sources:
        sources["master"] = flat
    first = 0
    for tile in states.tiles:
        part = slice(first, first + tile.elements)
        values = {name: tensor[part].to("cpu", torch.float32, copy=True) for name, tensor in sources.items()}
        on_host = flat[part] if is_on_host(flat) else flat[part].cpu()
        tile.restore(on_host.data_ptr(), values["master"].data_ptr(), values["exp_avg"].data_ptr(),
                     values["exp_avg_sq"].data_ptr(), saved.step, workers)
        if not is_on_host(flat):
            flat[part].copy_(on_host)
        first += tile.elements
    states.completed = saved.step


def fill_state_dict(optimizer, state_dict: dict) -> None:
    """A hook after Optimizer.state_dict(): adds what the runtime has."""
    parameters = {}
    for group, packed in zip(optimizer.param_groups, state_dict["param_groups"]):
        parameters.update(zip(packed["params"], group["params"]))
    for index, values in list(state_dict["state"].items()):
        parameter = parameters[index]
        states = optimizer._states[parameter]
        filled = {"step": values["step"].clone()}
        kinds = ("first_moment", "second_moment") + (("master",) if states.has_master else ())
        for kind in kinds:
            filled[_names[kind]] = _like(parameter, _read(states, parameter, kind))
        state_dict["state"][index] = filled


def _read(states: OffloadedStates, parameter: torch.Tensor, kind: str) -> torch.Tensor:
    flat = local_of(parameter.detach()).view(-1)
    values = _new_values(flat.numel(), states.paths)
    first = 0
    for tile in states.tiles:
        part = flat[first:first + tile.elements].cpu()
        tile.read(kind, part.data_ptr(), values[first:].data_ptr())
        first += tile.elements
    return values


def _like(parameter: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    local = values.view(local_of(parameter).shape)
    if not hasattr(parameter, "to_local"):
        return local
    return type(parameter.data).from_local(local, parameter.device_mesh, parameter.placements, run_check=False,
                                           shape=parameter.shape, stride=parameter.stride())


def _new_values(elements: int, paths: list) -> torch.Tensor:
    """In memory, or in a file without a name."""
    if not paths or elements == 0:
        return torch.empty(elements, dtype=torch.float32)
    directory = paths[0].directory if isinstance(paths[0], Path) else paths[0]
    with tempfile.TemporaryFile(dir=directory) as file:
        os.posix_fallocate(file.fileno(), 0, 4 * elements)
        return torch.frombuffer(mmap.mmap(file.fileno(), 4 * elements), dtype=torch.float32)
