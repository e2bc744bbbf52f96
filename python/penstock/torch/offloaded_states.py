"""The AdamW states of one parameter, in tiles of a runtime."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from .. import Runtime, Workers
from .._core import TileState, _checksum
from ..errors import FailedState
from .arguments import refuse
from .moves import Place, parked, place_of

dtype_names = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_automatic = {torch.float32: "moments", torch.bfloat16: "split", torch.float16: "fp32"}
_formats = {torch.float32: ("moments", "fp32"), torch.float16: ("fp32",),
            torch.bfloat16: ("split", "split_bf16", "split_q8", "moments_bf16", "fp32")}


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a DTensor; else the tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def is_on_host(tensor: torch.Tensor) -> bool:
    return tensor.is_cpu


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill its memory: as torch.contiguous_format, or channels_last."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.is_contiguous() or (tensor.dim() in formats and tensor.is_contiguous(memory_format=formats[tensor.dim()]))


def is_in_memory(tensor: torch.Tensor) -> bool:
    """Whether each element has memory: those of a sharded or a parked module share one, and a FakeTensor has none."""
    storage = tensor.untyped_storage()
    return storage.nbytes() >= tensor.numel() * tensor.element_size() and storage.device.type == tensor.device.type


def flat_of(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a dense tensor, in the order of memory."""
    return tensor.view(-1) if tensor.is_contiguous() else tensor.as_strided((tensor.numel(),), (1,))


def in_order_of(parameter: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, of the same shape, with its elements in the order of memory of the parameter."""
    if tensor.stride() == parameter.stride() or (tensor.is_contiguous() and parameter.is_contiguous()):
        return tensor
    return torch.empty_like(parameter, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def format_of(parameter: torch.Tensor, given: str | dict[torch.dtype, str], name: str) -> str:
    """The state format of the parameter. Raises InvalidArgument for a parameter that cannot be updated."""
    if isinstance(given, dict) and not all(isinstance(dtype, torch.dtype) for dtype in given):
        refuse("its keys are no dtypes", "state_format", wanted="{torch.bfloat16: \"split_q8\"}", got=str(given))
    if parameter.layout != torch.strided:
        refuse("it is sparse", name, wanted="a dense parameter", got=str(parameter.layout))
    if parameter.dtype not in dtype_names:
        refuse("its type is not supported", name, wanted="float32, bfloat16 or float16", got=str(parameter.dtype))
    if parameter.device.type == "meta":
        refuse("it has no memory", name, got="a tensor on the device meta", advice="make its values first")
    if not is_in_memory(local_of(parameter)):
        refuse("its elements share memory, or have none", name, wanted="memory for each", got="an expanded tensor, one whose "
               "memory was freed, or one of a sharded or a parked module", advice="clone() it; model.step() of a sharded module updates its parameters; unpark() a parked one")
    if local_of(parameter).is_neg():
        refuse("its memory has other values: the negative bit is set", name, advice="p.data = p.data.resolve_neg()")
    if not is_dense(local_of(parameter)):
        refuse("its memory is not contiguous", name, got=f"strides {local_of(parameter).stride()}",
               advice="p.data = p.data.contiguous()")
    chosen = given.get(parameter.dtype, "auto") if isinstance(given, dict) else given
    if chosen == "auto":
        return _automatic[parameter.dtype]
    if chosen not in _formats[parameter.dtype]:
        refuse("the state format does not fit its type", name,
               wanted=", ".join(("auto", *_formats[parameter.dtype])) + f", for {parameter.dtype}", got=str(chosen),
               advice='give a dictionary of formats by dtype: {torch.bfloat16: "split_q8"}')
    return chosen


def new_count(steps: int = 0) -> torch.Tensor:
    """A number of steps, as _set_counts() writes it: in host memory, whatever PyTorch's defaults are."""
    return torch.tensor(float(steps), dtype=torch.float32, device="cpu")


def count_changes(tensors: Sequence[torch.Tensor]) -> None:
    """Tells PyTorch that they were written: a backward of what was computed before would use other values."""
    torch.autograd.graph.increment_version([one for one in tensors if not one.is_inference()])


class OffloadedStates:
    """The states of a parameter, one TileState for each of its tiles.

    parameter: it may be a DTensor, of which these are the states of the local shard. tiles: their numbers of elements.
    in_memory: which of them stay in memory. paths: where the runtime's files are."""

    __slots__ = ("name", "parameter", "format", "completed", "paths", "is_distributed", "has_master", "tiles", "parts",
                 "follows_parameter", "count_address", "_shape", "_dtype", "_is_contiguous", "_seen", "_loaded", "_count")  # nearer than in a dictionary

    def __init__(self, runtime: Runtime, name: str, parameter: torch.Tensor, format: str, tiles: list[int],
                 first_element: int, in_memory: list[bool], paths: list) -> None:
        self.name = name
        self.parameter = parameter
        self.format = format
        self.completed = 0  # steps
        self.paths = [] if all(in_memory) else paths
        local = local_of(parameter)
        self.is_distributed = local is not parameter
        self._shape, self._dtype, self._is_contiguous = local.shape, local.dtype, local.is_contiguous()
        self._seen: Place | None = None  # of the parameter after the last update
        self._loaded: list[int] | None = None  # checksums of its tiles as masters were loaded, until the next update
        self._count = new_count()
        self.count_address = self._count.data_ptr()
        self.follows_parameter = format not in ("moments", "moments_bf16")
        """Whether the states have a copy of the master, or the part of it that the parameter lacks."""
        self.has_master = self.follows_parameter and parameter.dtype != torch.float32
        """Whether the states have more of the master than the parameter."""
        self.tiles = []
        for elements, stays in zip(tiles, in_memory):
            self.tiles.append(TileState(runtime, name, elements, dtype_names[parameter.dtype], format, first_element, stays))
            first_element += elements
        ends = list(itertools.accumulate(tiles))
        self.parts = [(tile, slice(end - tile.elements, end)) for tile, end in zip(self.tiles, ends)]
        """Each tile, and its elements of the flat parameter."""

    def are_of(self, parameter: torch.Tensor) -> bool:
        return (parameter.shape, parameter.dtype, parameter.is_contiguous()) == (self._shape, self._dtype, self._is_contiguous)

    @property
    def are_torn(self) -> bool:
        """Whether some tiles, or all, have made a step that is not complete."""
        return any(tile.completed != self.completed for tile in self.tiles)

    def check_parameter(self, parameter: torch.Tensor) -> None:
        """Raises InvalidArgument."""
        if id(self.parameter) in parked:
            refuse("it is parked", self.name, advice="unpark() the module", kind=FailedState)
        if not self.are_of(parameter):
            refuse("the parameter is not the one that its states were made for", self.name,
                   wanted=f"shape {tuple(self._shape)}, {self._dtype}", got=f"{tuple(parameter.shape)}, {parameter.dtype}, strides {parameter.stride()}",
                   advice="load_state_dict() makes its states again; or make another optimizer")

    def check(self, parameter: torch.Tensor, gradient: torch.Tensor) -> bool:
        """Returns whether an update takes the gradient as it is. Raises InvalidArgument for what cannot be updated."""
        if gradient.shape == self._shape == parameter.shape and gradient.dtype is self._dtype is parameter.dtype \
                and self._is_contiguous and parameter.is_contiguous() and gradient.layout is torch.strided \
                and gradient.is_contiguous() and not gradient.is_neg() and (parameter.is_cpu and gradient.is_cpu or gradient.device == parameter.device):
            return True  # as nearly all are
        self.check_parameter(parameter)
        if not is_dense(parameter):
            refuse("its memory is not contiguous", self.name, got=f"strides {parameter.stride()}",
                   advice="p.data = p.data.contiguous()")
        if gradient.layout != torch.strided:
            refuse("its gradient is sparse", self.name, wanted="a dense gradient", got=str(gradient.layout),
                   advice="make the layer with sparse=False")
        if gradient.shape != parameter.shape:
            refuse("its gradient has another shape", self.name, wanted=str(tuple(parameter.shape)),
                   got=str(tuple(gradient.shape)))
        if gradient.device != parameter.device:
            refuse("its gradient is on another device", self.name, wanted=str(parameter.device), got=str(gradient.device))
        return False

    def remember(self) -> None:
        """Notes the parameter as it is after an update, whose change is counted before. For is_changed()."""
        self._seen = place_of(local_of(self.parameter))

    @property
    def is_changed(self) -> bool:
        """Whether masters are to be made of the parameter again, since it has changed after the last update: a part of
        the old master does not fit another value."""
        return self.follows_parameter and self._seen is not None and self._seen != place_of(local_of(self.parameter)) \
            and not self.are_torn

    def note_loaded(self, parameter: torch.Tensor) -> None:
        """That the masters and the parameter are those of a state dictionary. A model that loads the same weights after
        that keeps the masters."""
        self._loaded = self._checksums(parameter) if self.has_master else None
        self.remember()

    def _checksums(self, parameter: torch.Tensor) -> list[int]:
        flat = flat_of(parameter)
        on_host = (flat[part] if is_on_host(flat) else flat[part].cpu() for _, part in self.parts)
        return [_checksum(one.data_ptr(), one.numel() * one.element_size()) for one in on_host]

    def take_over(self, parameter: torch.Tensor, workers: Workers) -> None:
        """Makes masters of their own of the parameter, unless it has the values with which they were loaded."""
        if self._loaded is not None and self._loaded == self._checksums(parameter):
            self.remember()
            return
        flat = flat_of(parameter)
        for tile, part in self.parts:
            on_host = flat[part] if is_on_host(flat) else flat[part].cpu()
            moments = [torch.empty(tile.elements, dtype=torch.float32, device="cpu") for _ in range(2)]
            for kind, values in zip(("first_moment", "second_moment"), moments):
                tile.read(kind, on_host.data_ptr(), values.data_ptr())
            master = on_host.to(torch.float32, copy=True)
            tile.restore(on_host.data_ptr(), master.data_ptr(), moments[0].data_ptr(), moments[1].data_ptr(),
                         tile.completed, workers)
        self._loaded = None
        self.remember()

    def count_in(self, state: dict) -> None:
        """Makes "step" of Optimizer.state the tensor at `count_address`."""
        if state.get("step") is not self._count:
            self._count = state["step"] = new_count()
            self.count_address = self._count.data_ptr()

    def reset(self) -> None:
        """Makes them as they were before the first step."""
        self.completed, self._loaded, self._seen = 0, None, None
        for tile in self.tiles:
            tile.reset()


class Update:
    """A step of a parameter.

    states: of the parameter. number: of the step. parameter, gradient: local tensors. hyperparameters: learning rate,
    betas, epsilon, decay, and the factor of gradients. Raises InvalidArgument for what cannot be updated."""

    __slots__ = ("states", "number", "parameter", "gradient", "hyperparameters", "is_ready", "_address")

    def __init__(self, states: OffloadedStates, number: int, parameter: torch.Tensor, gradient: torch.Tensor,
                 hyperparameters: Sequence[float]) -> None:
        if states.is_distributed:
            parameter, gradient = local_of(parameter), local_of(gradient)
        self.states = states
        self.number = number
        self.parameter = parameter
        self.gradient = gradient
        self.hyperparameters = hyperparameters
        self._address = parameter.data_ptr()
        self.is_ready = states.check(parameter, gradient)  # the gradient, as it is

    def ready_gradient(self) -> torch.Tensor:
        """The gradient, in the parameter's order of memory and of a type that an update takes; often the same tensor."""
        gradient = self.gradient
        if gradient.dtype not in dtype_names:
            gradient = gradient.float()
        return in_order_of(self.parameter, gradient.resolve_neg())

    @property
    def has_written(self) -> bool:
        """Whether a part of the parameter has made the step."""
        return any(tile.completed == self.number for tile in self.states.tiles)

    @property
    def is_complete(self) -> bool:
        return bool(self.states.tiles) and all(tile.completed == self.number for tile in self.states.tiles)

    def note(self) -> None:
        """That it is complete."""
        states = self.states
        states.completed = self.number
        if states.follows_parameter:
            states._loaded = None
            states.remember()

    def check_memory(self) -> None:
        """Raises FailedState if the parameter has got other memory meanwhile: the update has changed the former one."""
        if local_of(self.states.parameter).data_ptr() != self._address:
            refuse("it has got other memory during its update", self.states.name,
                   advice="change parameters and gradients between steps", kind=FailedState)
