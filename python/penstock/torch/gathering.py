"""The gathered units of a sharded module, and what autograd saves of them."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator

import torch
from torch.utils._pytree import tree_leaves

from .._core import Engine
from ..errors import FailedState
from .shard_arguments import refuse
from .units import Unit


class _Saved:
    """What autograd saves of a gathered parameter, or of a view of it: where to find it again."""

    def __init__(self, unit: Unit, index: int, tensor: torch.Tensor, updates: int) -> None:
        self.unit, self.index, self.updates = unit, index, updates
        self.view = (tensor.size(), tensor.stride(), tensor.storage_offset())


class _Hooks:
    """What autograd calls for tensors that it saves. pack, unpack: those that were there already."""

    def __init__(self, gathering: Gathering, pack: Callable | None, unpack: Callable | None) -> None:
        self.gathering, self._pack, self._unpack = gathering, pack, unpack

    def pack(self, tensor: torch.Tensor):
        saved = self.gathering._save(tensor)
        if saved is not None:
            return saved
        if self._pack is not None:
            return self._unpack, self._pack(tensor)
        return tensor.detach()  # itself, it would keep the graph that has it as an output, and the graph would keep it

    def unpack(self, packed):
        if isinstance(packed, _Saved):
            return self.gathering._find_again(packed)
        return packed[0](packed[1]) if isinstance(packed, tuple) else packed


class Gathering:
    """Gathers and releases units. What autograd saves of one does not keep its memory: the backward gathers it again."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._updates = 0
        self._found: dict[int, tuple[Unit, int]] = {}  # gathered parameters, by the address of their storage

    def gather(self, unit: Unit) -> None:
        if unit.is_gathered:
            return
        unit.gather(self._engine)
        for index, values in enumerate(unit.values):
            self._found[values.untyped_storage().data_ptr()] = unit, index

    def release_unused(self, *units: Unit) -> None:
        """Raises the first error, when all are released."""
        first = None
        for unit in units:
            if unit.users > 0 or not unit.is_gathered:
                continue
            self._forget(unit)
            try:
                unit.release()
            except FailedState as error:
                first = first or error
        if first is not None:
            raise first

    def leave(self, *units: Unit) -> None:
        """Makes their values absent without a check, also where a gather or a release was interrupted."""
        for unit in units:
            self._forget(unit)
            unit.leave()

    def _forget(self, unit: Unit) -> None:
        for values in unit.values:
            self._found.pop(values.untyped_storage().data_ptr(), None)

    def note_update(self) -> None:
        """The parameters have other values: a backward of a forward before is refused."""
        self._updates += 1

    def of_this_update(self, output):
        """What a forward returns: a backward of it after the next update is refused, whatever autograd has saved."""
        if torch.is_grad_enabled():
            check = functools.partial(_check_update, weakref.ref(self), self._updates)
            for one in tree_leaves(output):
                if isinstance(one, torch.Tensor) and one.requires_grad and not one.is_leaf:
                    one.register_hook(check)
        return output

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Of what autograd saves, gathered parameters are left out. The rest is for the hooks that are there already, such
        as those of offload_activations."""
        hooks = _Hooks(self, *(torch._C._autograd._top_saved_tensors_default_hooks(True) or (None, None)))
        with torch.autograd.graph.saved_tensors_hooks(hooks.pack, hooks.unpack):
            yield

    def drop_hooks(self) -> None:
        """Those that an interrupt has left in PyTorch, which enters and leaves them in Python."""
        while True:
            top = torch._C._autograd._top_saved_tensors_default_hooks(True)
            hooks = getattr(top[0], "__self__", None) if top else None
            if not isinstance(hooks, _Hooks) or hooks.gathering is not self:
                return
            torch._C._autograd._pop_saved_tensors_default_hooks()

    def _check_update(self, updates: int, what: str) -> None:
        if updates != self._updates:
            refuse("the parameters were updated, or the step was abandoned, since the forward of this backward", what,
                   advice="call backward() before step()", kind=FailedState)

    def _save(self, tensor: torch.Tensor) -> _Saved | None:
        if tensor.layout != torch.strided:
            return None
        unit, index = self._found.get(tensor.untyped_storage().data_ptr(), (None, 0))
        if unit is None or tensor.dtype != unit.values[index].dtype or tensor.is_conj() or tensor.is_neg():
            return None
        saved = _Saved(unit, index, tensor, self._updates)
        # discard() is no code of Python, in which the exception of a signal would be lost.
        unit.saved.add(weakref.ref(saved, unit.saved.discard))
        return saved

    def _find_again(self, saved: _Saved) -> torch.Tensor:
        unit = saved.unit
        self._check_update(saved.updates, unit.name)
        self.gather(unit)
        values = unit.values[saved.index].as_strided(*saved.view)  # keeps the memory, whatever becomes of the unit
        unit.saved.discard(weakref.ref(saved))
        if not unit.saved:
            self.release_unused(unit)
        return values


def _check_update(gathering: weakref.ref[Gathering], updates: int, _: torch.Tensor) -> None:
    """A hook, which the gathering must not keep alive."""
    if gathering() is not None:
        gathering()._check_update(updates, "the output of the module")
