"""State dictionaries of AdamW, in the form of torch.optim.AdamW's."""

from __future__ import annotations

import errno
import math
import mmap
import os
import resource
import tempfile

import torch

from .. import IoFailed, NoSpace, Path, Workers
from .arguments import refuse
from .offloaded_states import OffloadedStates, count_changes, flat_of, in_order_of, is_on_host, local_of, new_count

_names = {"first_moment": "exp_avg", "second_moment": "exp_avg_sq", "master": "master"}


class Saved:
    """States of one parameter in a dictionary. torch.optim.Optimizer copies and converts tensors that it finds there; of
    this object it takes none."""

    def __init__(self, values: dict) -> None:
        self._given_step = values.get("step")
        self.tensors = {name: values[name] for name in _names.values() if name in values}
        self.others = {name: value for name, value in values.items()
                       if name not in self.tensors and name not in ("step", "master_step", "max_exp_avg_sq")}
        # Others carry a master along as it was, while they make steps: it is that of its own step only.
        self._master_step = values.get("master_step", self._given_step)
        self.has_amsgrad = "max_exp_avg_sq" in values

    def check(self, parameter: torch.Tensor, name: str) -> None:
        """Raises InvalidArgument for states that are not of the parameter, or are no states of AdamW."""
        number = _number_of(self._given_step)
        if not 0 <= number < 2**53 or number != int(number) or isinstance(self._given_step, str):
            refuse("its number of steps is none", name, wanted="an integer from 0 to 2^53", got=repr(self._given_step)[:80])
        if math.isnan(_number_of(self._master_step)):
            refuse("its master_step is no number", name, wanted="the step that its master is of",
                   got=repr(self._master_step)[:80])
        if self.has_amsgrad:
            refuse("its states are of amsgrad, which is not supported", name, got="max_exp_avg_sq")
        for key in ("exp_avg", "exp_avg_sq"):
            if key not in self.tensors:
                refuse("its states lack a moment", name, wanted=key, got=", ".join(self.tensors) or "none",
                       advice="load states of AdamW or Adam")
        for key, tensor in self.tensors.items():
            if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.device.type == "meta":
                refuse(f"{key} in the state dictionary is no dense tensor with values", name, got=type(tensor).__name__)
            if not tensor.is_floating_point():
                refuse(f"{key} in the state dictionary has another type", name, wanted="floating point",
                       got=str(tensor.dtype))
            if tensor.shape != parameter.shape:
                refuse(f"{key} in the state dictionary has another shape", name, wanted=str(tuple(parameter.shape)),
                       got=str(tuple(tensor.shape)), advice="load the states of the same model")
            if _sharding_of(tensor) != _sharding_of(parameter):
                refuse(f"{key} in the state dictionary is sharded otherwise", name, wanted=_sharding_text(parameter),
                       got=_sharding_text(tensor),
                       advice="torch.distributed.checkpoint.state_dict.set_optimizer_state_dict() distributes the states of a "
                              "whole dictionary, which get_optimizer_state_dict() makes with full_state_dict=True")
            self._check_values(key, local_of(tensor.detach()), name)

    @property
    def step(self) -> int:
        return int(float(self._given_step))

    @property
    def has_master(self) -> bool:
        """Of this step, with all of its bits."""
        return "master" in self.tensors and self.tensors["master"].element_size() >= 4 \
            and _number_of(self._master_step) == self.step

    def why_master_is_left(self, states: OffloadedStates) -> str | None:
        """Why restore() takes the values of the parameter, although the dictionary has a master."""
        if "master" not in self.tensors or (states.has_master and self.has_master):
            return None
        if not states.has_master:
            return "its states have none: " + ("a parameter of float32 is its own" if states.parameter.dtype == torch.float32
                                               else f"state_format {states.format!r}")
        if self.tensors["master"].element_size() < 4:
            return f"it is of {self.tensors['master'].dtype}"
        return f"it is of step {_number_of(self._master_step):g}, and the moments are of step {self.step}"

    @staticmethod
    def _check_values(key: str, tensor: torch.Tensor, name: str) -> None:
        lowest = 0.0 if key == "exp_avg_sq" else -math.inf
        for part in tensor.reshape(-1).split(1 << 22):
            part = part.float() if part.element_size() < 2 else part
            smallest, largest = (value.item() for value in torch.aminmax(part)) if part.numel() else (0.0, 0.0)
            if math.isfinite(smallest) and math.isfinite(largest) and smallest >= lowest:
                continue
            refuse(f"{key} in the state dictionary has a value that it cannot have", name,
                   wanted="finite numbers" + (", 0 or more" if key == "exp_avg_sq" else ""),
                   got=f"{smallest:g} to {largest:g}", advice="load an earlier checkpoint")


def _sharding_of(tensor: torch.Tensor) -> tuple | None:
    """Which part of a DTensor is on this rank; None: it is no DTensor."""
    if not hasattr(tensor, "to_local"):
        return None
    # Without the type of the mesh's device: states are in host memory, whatever has the parameter.
    return tensor.placements, tensor.device_mesh.mesh.tolist(), local_of(tensor.detach()).shape


def _sharding_text(tensor: torch.Tensor) -> str:
    if not hasattr(tensor, "to_local"):
        return "a plain tensor"
    return f"a DTensor, {tuple(tensor.placements)} of ranks {tensor.device_mesh.mesh.tolist()}, " \
           f"{tuple(local_of(tensor.detach()).shape)} here"


def _number_of(given) -> float:
    try:
        return float(given)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return math.nan


def wrap_state_dict(_, state_dict: dict) -> dict:
    """A hook before Optimizer.load_state_dict()."""
    for key in ("state", "param_groups"):
        if key not in state_dict:
            refuse(f"it has no {key}", "the state dictionary", wanted="what state_dict() returns",
                   got=", ".join(map(str, state_dict)) or "nothing")
    for key, kind in (("state", dict), ("param_groups", (list, tuple))):
        if not isinstance(state_dict[key], kind):
            refuse(f"its {key} is something else", "the state dictionary", wanted="what state_dict() returns",
                   got=type(state_dict[key]).__name__)
    for one in (*state_dict["param_groups"], *state_dict["state"].values()):
        if not isinstance(one, dict):
            refuse("a group of it, or the state of a parameter, is no dictionary", "the state dictionary",
                   wanted="what state_dict() returns", got=type(one).__name__)
    known = {number for group in state_dict["param_groups"] for number in group.get("params", ())}
    for number in state_dict["state"]:
        if number not in known:
            refuse("it has states of a parameter that is in none of its groups", "the state dictionary",
                   wanted="what state_dict() returns", got=f"state[{number!r}]")
    return {**state_dict, "state": {key: Saved(values) for key, values in state_dict["state"].items()}}


def restore(saved: Saved, parameter: torch.Tensor, states: OffloadedStates, workers: Workers) -> None:
    """Sets the states, and where they have masters of their own, the parameter, tile by tile."""
    local = local_of(parameter.detach())
    flat = flat_of(local)
    sources = {name: flat_of(in_order_of(local, local_of(tensor.detach()))) for name, tensor in saved.tensors.items()}
    if not states.has_master or not saved.has_master:
        sources["master"] = flat
    for tile, part in states.parts:
        values = {name: tensor[part].to("cpu", torch.float32, copy=True) for name, tensor in sources.items()}
        on_host = flat[part] if is_on_host(flat) else flat[part].cpu()
        tile.restore(on_host.data_ptr(), values["master"].data_ptr(), values["exp_avg"].data_ptr(),
                     values["exp_avg_sq"].data_ptr(), saved.step, workers)
        if not is_on_host(flat):
            flat[part].copy_(on_host)
    states.completed = saved.step
    if states.has_master:  # which the parameter is rounded from
        count_changes([parameter, local])
    states.note_loaded(local)


def fill_state_dict(optimizer, state_dict: dict) -> None:
    """A hook after Optimizer.state_dict(): adds what the runtime has."""
    parameters = {}
    for group, packed in zip(optimizer.param_groups, state_dict["param_groups"]):
        parameters.update(zip(packed["params"], group["params"]))
    for index, values in list(state_dict["state"].items()):
        parameter = parameters[index]
        states = optimizer._states.get(parameter)
        if states is None or "step" not in values:  # the caller's own
            continue
        states.check_parameter(local_of(parameter))
        filled = {**values, "step": new_count(states.completed)}
        kinds = ("first_moment", "second_moment") + (("master",) if states.has_master else ())
        for kind in kinds:
            filled[_names[kind]] = _like(parameter, _read(states, parameter, kind))
        if states.has_master:
            filled["master_step"] = new_count(states.completed)
        state_dict["state"][index] = filled


def _read(states: OffloadedStates, parameter: torch.Tensor, kind: str) -> torch.Tensor:
    flat = flat_of(local_of(parameter.detach()))
    values = _new_values(flat.numel(), states.paths)
    for tile, part in states.parts:
        on_host = flat[part].cpu()
        tile.read(kind, on_host.data_ptr(), values[part].data_ptr())
    return values


def _like(parameter: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    local = values.as_strided(local_of(parameter).shape, local_of(parameter).stride())
    if not hasattr(parameter, "to_local"):
        return local
    return type(parameter.data).from_local(local, parameter.device_mesh, parameter.placements, run_check=False,
                                           shape=parameter.shape, stride=parameter.stride())


def _new_values(elements: int, paths: list) -> torch.Tensor:
    """In memory, or in a file without a name."""
    if not paths or elements == 0:
        return torch.empty(elements, dtype=torch.float32, device="cpu")
    directory = paths[0].directory if isinstance(paths[0], Path) else paths[0]
    nbytes = 4 * elements
    try:
        file = tempfile.TemporaryFile(dir=directory)
    except OSError as error:
        refuse(f"the values of a state dictionary cannot be kept there: {error.strerror}", str(directory),
               wanted=f"a directory for {nbytes} bytes", advice="make the directory again; until then the states are whole, in "
               "files without a name that were there", kind=IoFailed)
    with file:
        try:
            os.posix_fallocate(file.fileno(), 0, nbytes)
        except OSError as error:
            limit, free = resource.getrlimit(resource.RLIMIT_FSIZE)[0], os.statvfs(directory)
            if error.errno == errno.EFBIG and 0 <= limit < nbytes:
                refuse("the values of a state dictionary are larger than files of this process may be (RLIMIT_FSIZE)",
                       str(directory), wanted=f"{nbytes} bytes", got=str(limit), advice="ulimit -f unlimited", kind=NoSpace)
            refuse("the values of a state dictionary do not fit the drive", str(directory),
                   wanted=f"{nbytes} bytes", got=f"{free.f_bavail * free.f_frsize} ({error.strerror})",
                   advice="free space there; the values of states on disk are in files without a name until the "
                          "dictionary is deleted", kind=NoSpace)
        return torch.frombuffer(mmap.mmap(file.fileno(), nbytes), dtype=torch.float32)
