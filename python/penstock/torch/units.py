"""Units: parameters of a module that are gathered and released together."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence

import torch

from .._core import Engine
from .offloaded_states import dtype_names

Named = list[tuple[str, torch.nn.Parameter]]


class Unit:
    """Parameters that are gathered and released together: all are trained, or all are frozen.

    A gathered parameter has memory of PyTorch, whose storage stays the same and has no bytes otherwise: views that
    autograd has saved are whole again when the backward needs them. A parameter that is not gathered is empty, of shape
    (0,), so that its use outside of its module's forward is an error of PyTorch."""

    def __init__(self, number: int, name: str, parameters: Named, is_frozen: bool) -> None:
        self.number = number
        self.name = name
        self.parameters = parameters
        self.is_frozen = is_frozen
        self.users = 0  # modules in their forward
        self.is_kept = False  # until the end of the backward: its memory has left its module
        self.uses: set[object] = set()  # in this backward, which need it still
        self.calls: collections.Counter[torch.nn.Module] = collections.Counter()  # of its modules, in this micro-batch
        self.gradients: list[torch.Tensor | None] = [None] * len(parameters)
        self.is_reduced = False  # in this micro-batch
        self.is_gathered = True
        self._full = [parameter.data for _, parameter in parameters]
        self._bytes = [full.untyped_storage().nbytes() for full in self._full]
        self._empty = self._full[0].new_empty(0)

    def storages(self) -> set[int]:
        """Of its memory while it is gathered."""
        return {full.untyped_storage().data_ptr() for full in self._full if full.numel() > 0}

    def gather(self, engine: Engine) -> None:
        if self.is_gathered:
            return
        for full, size in zip(self._full, self._bytes):
            full.untyped_storage().resize_(size)
        self.is_gathered = True
        engine.gather(self.number, [full.data_ptr() for full in self._full])
        for (_, parameter), full in zip(self.parameters, self._full):
            parameter.data = full

    def release(self) -> None:
        if not self.is_gathered:
            return
        for _, parameter in self.parameters:
            parameter.data = self._empty
        for full in self._full:
            full.untyped_storage().resize_(0)
        self.is_gathered = False

    def release_if_unused(self) -> None:
        if self.users == 0 and not self.is_kept and not self.uses:
            self.release()

    def end_micro_batch(self) -> None:
        self.is_kept = self.is_reduced = False
        self.uses.clear()
        self.calls.clear()
        self.gradients = [None] * len(self.parameters)

    def add_gradient(self, index: int, gradient: torch.Tensor) -> None:
        earlier = self.gradients[index]
        self.gradients[index] = gradient.contiguous() if earlier is None else earlier.add_(gradient)

    @property
    def is_complete(self) -> bool:
        """Whether this backward brings no other gradient. Reentrant checkpoints bring one for each use of a module."""
        return all(one is not None for one in self.gradients) and all(count == 1 for count in self.calls.values())

    def reduce(self, engine: Engine) -> None:
        """Reduces its gradients, and zeros where there is none."""
        gradients = [gradient if gradient is not None else torch.zeros(full.shape, dtype=full.dtype)
                     for gradient, full in zip(self.gradients, self._full)]
        engine.reduce(self.number, [(one.data_ptr(), one.numel(), dtype_names[one.dtype]) for one in gradients])
        self.gradients = [None] * len(self.parameters)
        self.is_reduced = True


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


def tensors_of(value) -> Iterable[torch.Tensor]:
    """Of tuples, lists, dictionaries, and attributes of other objects."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors_of(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors_of(one)
    elif hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)):
        for one in vars(value).values():
            if isinstance(one, (torch.Tensor, list, tuple, dict)):
                yield from tensors_of(one)
