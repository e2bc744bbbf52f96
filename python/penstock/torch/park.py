"""Parks the memory of a module: what sleep modes of inference engines do."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Iterator

import torch

from .. import Store, errors
from ..array_bytes import ArrayType
from ..errors import FailedState, NotFound, Unsupported
from .sharding_hooks import Parameters

_refuse = functools.partial(errors.refuse, "penstock.torch.park")
_parked: set[int] = set()  # ids of tensors, which a Parked keeps


@dataclasses.dataclass
class _Memory:
    """One storage, and the tensors of the module that are views of it."""

    name: str
    storage: torch.UntypedStorage | None
    nbytes: int
    device: torch.device
    tensors: list[torch.Tensor] = dataclasses.field(default_factory=list)
    views: list[tuple] = dataclasses.field(default_factory=list)
    absent: list[torch.Tensor] = dataclasses.field(default_factory=list)  # what they have while they are parked

    def take_from_tensors(self) -> None:
        for tensor in self.tensors:
            self.views.append((tensor.storage_offset(), tensor.size(), tensor.stride()))
            value = torch.nan if tensor.is_floating_point() or tensor.is_complex() else 0
            self.absent.append(tensor.detach().new_full((), value).expand(tensor.shape))
            tensor.data = self.absent[-1]
            _parked.add(id(tensor))
        self.storage = None

    def give_to_tensors(self, storage: torch.UntypedStorage) -> None:
        for tensor, view in zip(self.tensors, self.views):
            tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage, *view)
            _parked.discard(id(tensor))


class Parked:
    """A module whose memory is in a store, see park(). A `with` block ends with unpark()."""

    def __init__(self, store: Store, memories: list[_Memory]) -> None:
        self._store = store
        self._memories: list[_Memory] = []
        # The last arrays stay in memory, beside the pieces through which the first ones come back.
        room = store._room() - 2 * store._piece - sum(memory.nbytes for memory in memories)
        try:
            for memory in memories:
                room += memory.nbytes
                store._put(memory.name, torch.empty(0, dtype=torch.uint8, device=memory.device).set_(memory.storage), room)
                self._memories.append(memory)
        except BaseException:
            for memory in self._memories:  # all tensors have their memory still
                store.remove(memory.name)
            raise
        for memory in memories:
            memory.take_from_tensors()
        weakref.finalize(self, _parked.difference_update, [id(one) for memory in memories for one in memory.tensors])
        _empty_caches({memory.device.type for memory in memories})

    def unpark(self) -> None:
        """Gives the tensors memory and their values again, and removes them from the store. Raises FailedState for a
        tensor that has got other memory meanwhile, and changes nothing then. Raises NotFound for one whose values were
        removed from the store, when all others have theirs. Raises NoSpace, RuntimeError where a device
        has no room, and what Store.get() raises: some tensors have their values then, and it can be called again."""
        for memory in self._memories:
            self._check_absent(memory)
        missing = [memory for memory in self._memories if memory.name not in self._store]
        self._memories = [memory for memory in self._memories if memory.name in self._store]
        try:
            self._get_all()
        finally:
            self._memories += missing
        if missing:
            _refuse("its values were removed from the store", missing[0].name, advice="load them into the module; all others "
                    "have their values", kind=NotFound)

    def _get_all(self) -> None:
        with contextlib.closing(_new_memories(self._memories[:])) as flats:
            for flat in flats:
                memory = self._memories[0]
                self._store.get(memory.name, into=flat)
                memory.give_to_tensors(flat.untyped_storage())
                self._store.remove(memory.name)
                del self._memories[0]
                self._store.prefetch(*(coming.name for coming in self._memories[:2]))

    @staticmethod
    def _check_absent(memory: _Memory) -> None:
        for tensor, absent in zip(memory.tensors, memory.absent):
            if tensor.data_ptr() != absent.data_ptr():
                _refuse("a tensor of it has got other memory while it was parked", memory.name,
                        wanted="what park() has left", got=f"shape {tuple(tensor.shape)}, strides {tensor.stride()}",
                        advice="its values are in the store under this name", kind=FailedState)

    def __enter__(self) -> Parked:
        return self

    def __exit__(self, *_) -> None:
        self.unpark()


def park(module: torch.nn.Module, store: Store, prefix: str = "") -> Parked:
    """Moves the memory of a module's parameters and buffers, without gradients, to `store`, on the host or on a device.

    The tensors stay the same objects, with their shapes, and their values are NaN (or 0) until Parked.unpark(); tied and
    shared ones are parked once. Their bytes are in the store's host memory or on its drives, verified when they come
    back. The memory is free unless another tensor is a view of it: keep none. prefix: of their names in the store, for
    several modules in one.

        with penstock.torch.park(model, store):
            …                                     # another program has the memory

    Raises what Store.put() raises, InvalidArgument for names that are in the store already, and Unsupported for tensors
    without memory of their own and memory that processes share: all is as before then."""
    if not isinstance(module, torch.nn.Module) or not isinstance(store, Store):
        _refuse("it is something else", "module and store", wanted="a torch.nn.Module and a penstock.Store",
                got=f"{type(module).__name__}, {type(store).__name__}")
    if any(isinstance(one._parameters, Parameters) for one in module.modules()):
        _refuse("it is sharded", "module", wanted="a plain module", advice="its parameters are where its configuration says",
                kind=Unsupported)
    memories: dict[int, _Memory] = {}
    seen = set()
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if hasattr(tensor, "to_local") or tensor.layout != torch.strided or tensor.device.type == "meta":
            _refuse("it has no memory of its own", name, wanted="a dense tensor",
                    got=f"{type(tensor).__name__}, {tensor.layout}, on {tensor.device}", kind=Unsupported)
        if tensor.device.type == "cpu" and tensor.is_shared():
            _refuse("other processes share its memory", name, advice="p.data = p.data.clone()", kind=Unsupported)
        if id(tensor) in _parked:
            _refuse("it is parked already", name, advice="unpark() it first", kind=FailedState)
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0 or tensor in seen:
            continue
        seen.add(tensor)
        memory = memories.setdefault(storage.data_ptr(), _Memory(f"{prefix}{name}", storage, storage.nbytes(), tensor.device))
        memory.tensors.append(tensor)
    taken = [memory.name for memory in memories.values() if memory.name in store]
    if taken:
        _refuse("the store has an array with this name", taken[0], advice="unpark what is there, or give another prefix")
    return Parked(store, list(memories.values()))


def _new_memories(memories: list[_Memory]) -> Iterator[torch.Tensor]:
    """That of the host comes from a thread: to clear its pages takes as long as to read the drive."""
    futures: list[concurrent.futures.Future | None] = [None] * len(memories)
    with concurrent.futures.ThreadPoolExecutor(1) as allocator:
        try:
            for number, memory in enumerate(memories):
                if memory.device.type == "cpu":
                    with contextlib.suppress(RuntimeError):  # the interpreter ends, and starts no thread
                        futures[number] = allocator.submit(_new_memory, memory)
            for number, memory in enumerate(memories):
                future, futures[number] = futures[number], None
                yield _new_memory(memory) if future is None else future.result()
        finally:
            for future in filter(None, futures):
                future.cancel()


def _new_memory(memory: _Memory) -> torch.Tensor:
    if memory.device.type == "cpu":
        return ArrayType("torch", torch.uint8, (memory.nbytes,), memory.nbytes).empty()  # of large pages
    return torch.empty(memory.nbytes, dtype=torch.uint8, device=memory.device)


def _empty_caches(kinds: set[str]) -> None:
    """PyTorch keeps freed memory of a device for itself."""
    for kind in kinds - {"cpu"}:
        getattr(torch, kind).empty_cache()
