"""Units: parameters of a module that are gathered and released together."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import torch

from .._core import Engine, _sample_checksum
from ..errors import FailedState, refuse
from .offloaded_states import dtype_names

Named = list[tuple[str, torch.nn.Parameter]]


class _Gathered(NamedTuple):
    """Of each parameter, as it was gathered."""

    values: list[torch.Tensor]
    versions: list[int]
    samples: list[int]  # checksums: what is written through p.data PyTorch does not count


class Unit:
    """Parameters that are gathered and released together: all are trained, or all are frozen.

    A gathered parameter has new memory of PyTorch, which lives as long as a view of it: whatever a trainer keeps stays as
    it was. One that is not gathered has its shape, and NaN as each of its values."""

    def __init__(self, number: int, name: str, parameters: Named, is_frozen: bool) -> None:
        self.number = number
        self.name = name
        self.parameters = parameters
        self.is_frozen = is_frozen
        self.users = 0  # modules in their forward
        self.saved: set[weakref.ref] = set()  # by autograd in the forward, neither asked for by the backward yet, nor freed
        self.gradients: list[torch.Tensor | None] = [None] * len(parameters)
        self.is_reduced = False  # in this micro-batch
        self.is_late = False  # its gradient is complete at the end of the backward only
        self._gathered: _Gathered | None = None  # one object, so that an interrupt finds all of it or none
        self._shapes = [parameter.shape for _, parameter in parameters]
        self._dtypes = [parameter.dtype for _, parameter in parameters]
        self._absent = self._set(self._new_absent())

    @property
    def is_gathered(self) -> bool:
        return self._gathered is not None

    @property
    def values(self) -> list[torch.Tensor]:
        """While it is gathered."""
        return self._gathered.values if self._gathered is not None else []

    def gather(self, engine: Engine) -> None:
        """Raises FailedState where the parameters were changed since they left: that would be lost."""
        if self.is_gathered:
            return
        self._check_absent()
        values = [torch.empty(shape, dtype=dtype, device="cpu") for shape, dtype in zip(self._shapes, self._dtypes)]
        engine.gather(self.number, [one.data_ptr() for one in values])
        self._gathered = self._set(values)

    def release(self) -> None:
        """Raises FailedState where the values were changed: they would be lost. Can be repeated after an interrupt."""
        if not self.is_gathered:
            return
        changed = self._first_changed(self._gathered)
        self.leave()
        if changed is not None:
            refuse("penstock.torch.shard", "its values were changed in place, which is lost", changed,
                   wanted="changes by the optimizer alone", kind=FailedState)

    def leave(self) -> None:
        """Makes all values NaN, which take no memory, whatever the parameters have."""
        self._absent = self._set(self._absent.values)
        self._gathered = None

    def name_of(self, parameter: torch.nn.Parameter) -> str:
        return next(name for name, one in self.parameters if one is parameter)

    def end_micro_batch(self) -> None:
        self.is_reduced = self.is_late = False
        self.saved.clear()  # what is found or freed later does not count in the next one
        self.gradients = [None] * len(self.parameters)

    def drop_gradients(self) -> None:
        """What an interrupted backward has left in the parameters."""
        for _, parameter in self.parameters:
            parameter.grad = None

    def add_gradient(self, index: int, gradient: torch.Tensor) -> None:
        earlier = self.gradients[index]
        self.gradients[index] = gradient.resolve_neg().contiguous() if earlier is None else earlier.add_(gradient)

    def reduce(self, engine: Engine) -> None:
        """Reduces its gradients, and zeros where there is none."""
        gradients = [gradient if gradient is not None else torch.zeros(shape, dtype=dtype, device="cpu")
                     for gradient, shape, dtype in zip(self.gradients, self._shapes, self._dtypes)]
        engine.reduce(self.number, [(one.data_ptr(), one.numel(), dtype_names[one.dtype]) for one in gradients])
        self.gradients = [None] * len(self.parameters)
        self.is_reduced = True

    def _check_absent(self) -> None:
        changed = self._first_changed(self._absent)
        if changed is not None:
            self._absent = self._set(self._new_absent())
            refuse("penstock.torch.shard", "it was changed while its values were elsewhere, which is lost", changed,
                   wanted="changes by the optimizer alone", advice="change the module before shard()", kind=FailedState)

    def _new_absent(self) -> list[torch.Tensor]:
        return [torch.full((), torch.nan, dtype=dtype, device="cpu").expand(shape)
                for dtype, shape in zip(self._dtypes, self._shapes)]

    def _first_changed(self, noted: _Gathered) -> str | None:
        for (name, parameter), one, version, before, now in zip(self.parameters, *noted, _samples_of(noted.values)):
            if parameter._version != version or parameter.data_ptr() != one.data_ptr() or before != now:
                return name
        return None

    def _set(self, values: list[torch.Tensor]) -> _Gathered:
        for (_, parameter), one in zip(self.parameters, values):
            parameter.data = one
        return _Gathered(values, [parameter._version for _, parameter in self.parameters], _samples_of(values))


def _samples_of(values: list[torch.Tensor]) -> list[int]:
    return [_sample_checksum(one.data_ptr(), one.untyped_storage().nbytes()) for one in values]


@dataclasses.dataclass
class Part:
    """What becomes a unit. users: modules in whose forward it is used."""

    name: str
    is_frozen: bool
    parameters: Named = dataclasses.field(default_factory=list)
    users: list[torch.nn.Module] = dataclasses.field(default_factory=list)


def divide(module: torch.nn.Module, whole: Sequence[type]) -> list[Part]:
    """The parts of a module in the order of its definition. Modules of the classes in `whole` are one part each, with all
    that is in them, or two where some of it is frozen; of others the parameters that they have themselves. A parameter of
    several modules belongs to the first."""
    parts: dict[tuple[str, bool], Part] = {}
    part_of: dict[torch.nn.Parameter, Part] = {}
    root_name, root = None, None  # of the whole module that encloses the current one
    for path, one in module.named_modules():
        if root is not None and root_name and not path.startswith(f"{root_name}."):
            root_name, root = None, None
        if root is None and isinstance(one, tuple(whole)):
            root_name, root = path, one
        name = root_name if root is not None else path
        for own, parameter in one.named_parameters(recurse=False):
            if parameter not in part_of:
                key = (name, not parameter.requires_grad)
                part_of[parameter] = parts.setdefault(key, Part(*key))
                full = f"{path}.{own}" if path else own
                part_of[parameter].parameters.append((full, parameter))
            users = part_of[parameter].users
            users.extend(user for user in (one, root) if user is not None and all(user is not other for other in users))
    return list(parts.values())
