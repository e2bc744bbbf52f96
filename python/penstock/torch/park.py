"""Parks the memory of a module: what sleep modes of inference engines do."""

from __future__ import annotations

import _thread
import contextlib
import dataclasses
import functools
import queue
import warnings
from collections.abc import Iterator
from typing import NoReturn

import torch

from .. import Store, errors
from ..array_bytes import ArrayType
from ..errors import FailedState, NotFound, Unsupported
from .moves import Place, note_move, parked, place_of
from .sharding_hooks import Parameters

_refuse = functools.partial(errors.refuse, "penstock.torch.park")


@dataclasses.dataclass(eq=False)
class _Memory:
    """One storage, and the tensors of the module that are views of it. An interrupted call may be repeated."""

    name: str
    storage: torch.UntypedStorage | None  # None while it is parked
    nbytes: int
    device: torch.device
    tensors: list[torch.Tensor] = dataclasses.field(default_factory=list)
    views: list[tuple] = dataclasses.field(default_factory=list)
    absent: list[torch.Tensor] = dataclasses.field(default_factory=list)  # what they have while they are parked
    places: list[Place] = dataclasses.field(default_factory=list)  # where they were
    versions: list[int] = dataclasses.field(default_factory=list)  # of `absent`, once the tensors have it

    def add(self, name: str, tensor: torch.Tensor) -> None:
        value = torch.nan if tensor.is_floating_point() or tensor.is_complex() else 0
        try:
            with _mode_of(tensor):
                absent = tensor.detach().new_full((), value).expand(tensor.shape)
        except (NotImplementedError, RuntimeError) as error:
            _refuse("PyTorch makes no values of its type", name, got=f"{tensor.dtype} ({str(error).splitlines()[0]})",
                    kind=Unsupported)
        self.tensors.append(tensor)
        self.views.append((tensor.storage_offset(), tensor.size(), tensor.stride()))
        self.absent.append(absent)
        self.places.append(place_of(tensor))

    def take_from_tensors(self) -> None:
        """They keep the storage until it is None."""
        self.versions = []
        for tensor, absent in zip(self.tensors, self.absent):
            with _mode_of(tensor):
                tensor.data = absent
            # Of one tensor, not of its type: copy and pickle ask the object first.
            tensor.__deepcopy__ = tensor.__reduce_ex__ = functools.partial(_refuse_copy, self.name)
            self.versions.append(_version_of(tensor))

    def give_to_tensors(self, values_are_the_same: bool = True) -> None:
        for tensor, view, place in zip(self.tensors, self.views, self.places):
            with _mode_of(tensor):
                tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(self.storage, *view)
            for name in ("__deepcopy__", "__reduce_ex__"):
                tensor.__dict__.pop(name, None)
            if values_are_the_same:
                note_move(tensor, place)

    def were_written(self) -> bool:
        """Whether values were written to the tensors while they had none."""
        return any(_version_of(tensor) != version for tensor, version in zip(self.tensors, self.versions))

    def first_changed(self) -> torch.Tensor | None:
        """A tensor that another has given memory while it was parked."""
        own = {absent.data_ptr() for absent in self.absent}
        for tensor in self.tensors:
            if tensor.data_ptr() not in own and (self.storage is None or tensor.untyped_storage().data_ptr() != self.storage.data_ptr()):
                return tensor
        return None


class Parked:
    """A module whose memory is in a store, see park(). A `with` block ends with unpark()."""

    def __init__(self, module: torch.nn.Module, store: Store, memories: list[_Memory]) -> None:
        self._store = store
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._memories: list[_Memory] = []
        # The last arrays stay in memory, beside the pieces through which the first ones come back.
        room = store._room() - 2 * store._piece - sum(memory.nbytes for memory in memories)
        try:
            for memory in memories:
                room += memory.nbytes
                self._memories.append(memory)
                with torch.inference_mode(memory.tensors[0].is_inference()):
                    flat = torch.empty(0, dtype=torch.uint8, device=memory.device).set_(memory.storage)
                    store._put(memory.name, flat, room)
            for memory in memories:
                memory.take_from_tensors()
                parked.update((id(one), self) for one in memory.tensors)
            for one in module.modules():
                self._hooks += [one.register_state_dict_pre_hook(_refuse_state_dict),
                                one.register_load_state_dict_pre_hook(_refuse_load)]
            store._parked.add(self)  # until unpark(), whoever keeps what park() returns
            for memory in memories:
                memory.storage = None
        except BaseException:
            self._get_all()
            self._end_all()
            raise
        _empty_caches({memory.device.type for memory in memories})

    def unpark(self) -> None:
        """Gives the tensors memory and their values again, and removes them from the store. Raises FailedState for a
        tensor that has got other memory meanwhile, and changes nothing then. Raises NotFound for one whose values were
        removed from the store, when all others have theirs: it has memory, and its values are NaN (or 0). Raises NoSpace,
        RuntimeError where a device has no room, and what Store.get() raises: some tensors have their values then, and it
        can be called again, as after an interrupt."""
        for memory in self._memories:
            changed = memory.first_changed()
            if changed is not None:
                _refuse("a tensor of it has got other memory while it was parked", memory.name,
                        wanted="what park() has left", got=f"shape {tuple(changed.shape)}, strides {changed.stride()}",
                        advice="its values are in the store under this name", kind=FailedState)
        written = [memory.name for memory in self._memories if memory.were_written()]
        if written:
            warnings.warn(f"what was written to {', '.join(written[:3])} while it was parked is lost", RuntimeWarning, stacklevel=2)
        lost = [memory for memory in self._memories if memory.storage is None and memory.name not in self._store]
        for memory in lost:
            absent = [one.detach().clone() for one in memory.tensors]
            memory.storage = _new_memory(memory).untyped_storage()
            memory.give_to_tensors(values_are_the_same=False)
            for tensor, values in zip(memory.tensors, absent):
                with _mode_of(tensor):
                    tensor.detach().copy_(values)
            self._end(memory)
        self._get_all()
        self._end_all()
        if lost:
            _refuse("its values were removed from the store", lost[0].name, got="NaN, or 0", advice="load them into the module; "
                    "all others have their values", kind=NotFound)

    def _get_all(self) -> None:
        """Those whose storage is not None have their values: an interrupt may have come before they were noted."""
        with contextlib.closing(_new_memories([memory for memory in self._memories if memory.storage is None])) as flats:
            while self._memories:
                memory = self._memories[0]
                if memory.storage is None:
                    flat = next(flats)
                    self._store.get(memory.name, into=flat)
                    memory.storage = flat.untyped_storage()
                memory.give_to_tensors()
                if memory.name in self._store:
                    self._store.remove(memory.name)
                self._end(memory)
                self._store.prefetch(*(coming.name for coming in self._memories[:2] if coming.name in self._store))

    def _end_all(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._store._parked.discard(self)

    def _end(self, memory: _Memory) -> None:
        for tensor in memory.tensors:
            if parked.get(id(tensor)) is self:
                del parked[id(tensor)]
        self._memories.remove(memory)

    def __enter__(self) -> Parked:
        return self

    def __exit__(self, *_) -> None:
        self.unpark()


def park(module: torch.nn.Module, store: Store, prefix: str = "") -> Parked:
    """Moves the memory of a module's parameters and buffers, without gradients, to `store`, on the host or on a device.

    The tensors stay the same objects, with their shapes, and their values are NaN (or 0) until Parked.unpark(); tied and
    shared ones are parked once. Their bytes are in the store's host memory or on its drives, verified when they come
    back. The memory is free unless another tensor is a view of it: keep none. prefix: of their names in the store, for
    several modules in one. unpark(module) does what Parked.unpark() does, where an interrupt has lost what park() returns.
    state_dict(), load_state_dict(), deep copies and pickling of the module are refused meanwhile. A penstock.torch.AdamW of the parameters goes on after unpark() with
    the same bits.

        with penstock.torch.park(model, store):
            …                                     # another program has the memory

    Raises what Store.put() raises, InvalidArgument for names that are in the store already, and Unsupported for tensors
    without memory of their own and memory that processes share: all is as before then."""
    if not isinstance(prefix, str):
        _refuse("it is no text", "prefix", got=repr(prefix))
    if not isinstance(module, torch.nn.Module) or not isinstance(store, Store):
        _refuse("it is something else", "module and store", wanted="a torch.nn.Module and a penstock.Store",
                got=f"{type(module).__name__}, {type(store).__name__}")
    if any(isinstance(one._parameters, Parameters) for one in module.modules()):
        _refuse("it is sharded", "module", wanted="a plain module", advice="its parameters are where its configuration says",
                kind=Unsupported)
    memories: dict[int, _Memory] = {}
    seen = set()
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if torch.nn.parameter.is_lazy(tensor):
            _refuse("it has no shape yet", name, advice="call the module once before", kind=Unsupported)
        if hasattr(tensor, "to_local") or tensor.layout != torch.strided or tensor.device.type == "meta":
            _refuse("it has no memory of its own", name, wanted="a dense tensor",
                    got=f"{type(tensor).__name__}, {tensor.layout}, on {tensor.device}", kind=Unsupported)
        if tensor.untyped_storage().device.type != tensor.device.type:
            _refuse("it has no memory", name, got=type(tensor).__name__, kind=Unsupported)
        if tensor.device.type == "cpu" and tensor.is_shared():
            _refuse("other processes share its memory", name, advice="p.data = p.data.clone()", kind=Unsupported)
        if id(tensor) in parked:
            _refuse("it is parked already", name, advice="penstock.torch.unpark(module) first", kind=FailedState)
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0 or tensor in seen:
            continue
        seen.add(tensor)
        memory = memories.setdefault(storage.data_ptr(), _Memory(f"{prefix}{name}", storage, storage.nbytes(), tensor.device))
        memory.add(name, tensor)
    taken = [memory.name for memory in memories.values() if memory.name in store]
    if taken:
        _refuse("the store has an array with this name", taken[0], advice="unpark what is there, or give another prefix")
    return Parked(module, store, list(memories.values()))


def unpark(module: torch.nn.Module) -> None:
    """Parked.unpark() of a module that is parked. Raises FailedState for one that is not."""
    found = {id(one): one for one in (parked.get(id(tensor)) for tensor in (*module.parameters(), *module.buffers()))
             if one is not None}
    if not found:
        _refuse("it is not parked, or its tensors were replaced", "the module", wanted="one that park() has parked",
                kind=FailedState)
    for one in found.values():
        one.unpark()


def _refuse_state_dict(module: torch.nn.Module, *_, call: str = "state_dict()") -> None:
    """A hook. Its handle may outlive an interrupt."""
    for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
        if id(tensor) in parked:
            _refuse_copy(name, call=call)


_refuse_load = functools.partial(_refuse_state_dict, call="load_state_dict()")


def _refuse_copy(name: str, *_, call: str = "a copy") -> NoReturn:
    _refuse("it is parked, and has no values", name, wanted=f"{call} after unpark()", advice="penstock.torch.unpark(module)",
            kind=FailedState)


def _new_memories(memories: list[_Memory]) -> Iterator[torch.Tensor]:
    """That of the host comes from a thread: to clear its pages takes as long as to read the drive.

    An interrupt within a lock that is written in Python, as those of threading and concurrent.futures, leaves it locked,
    and the thread waits for ever: none is used here."""
    on_host = [memory for memory in memories if memory.device.type == "cpu"]
    made: queue.SimpleQueue[torch.Tensor | BaseException] = queue.SimpleQueue()  # of C
    is_left: list[bool] = []

    def allocate() -> None:
        for memory in on_host:
            if is_left:
                return
            try:
                made.put(_new_memory(memory))
            except BaseException as error:
                made.put(error)

    has_thread = False
    try:
        with contextlib.suppress(RuntimeError):  # the interpreter ends, and starts no thread
            _thread.start_new_thread(allocate, ())
            has_thread = True
        for memory in memories:
            new = made.get() if has_thread and memory.device.type == "cpu" else _new_memory(memory)
            if isinstance(new, BaseException):
                raise new
            yield new
    finally:
        is_left.append(True)


def _new_memory(memory: _Memory) -> torch.Tensor:
    if memory.device.type == "cpu":
        return ArrayType("torch", torch.uint8, (memory.nbytes,), memory.nbytes).empty()  # of large pages
    return torch.empty(memory.nbytes, dtype=torch.uint8, device=memory.device)


def _empty_caches(kinds: set[str]) -> None:
    """PyTorch keeps freed memory of a device for itself."""
    for kind in kinds - {"cpu"}:
        getattr(torch, kind).empty_cache()


def _version_of(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _mode_of(tensor: torch.Tensor) -> contextlib.AbstractContextManager:
    """Tensors that were made in inference mode are changed in it."""
    return torch.inference_mode(tensor.is_inference())
