"""Parks the memory of a module: what sleep modes of inference engines do."""

from __future__ import annotations

import torch

from .. import Store
from ..errors import FailedState, Unsupported, refuse


class Parked:
    """A module whose memory is in a store, see park(). A `with` block ends with unpark()."""

    def __init__(self, store: Store, storages: list[tuple[str, torch.UntypedStorage]]) -> None:
        self._store = store
        self._sizes: list[tuple[str, torch.UntypedStorage, int]] = []
        for name, storage in storages:
            size = storage.nbytes()
            try:
                store.put(name, _bytes_of(storage))
            except BaseException:
                self.unpark()
                raise
            self._sizes.append((name, storage, size))
            storage.resize_(0)
        _empty_caches(storage for _, storage in storages)

    def unpark(self) -> None:
        """Gives the tensors their memory and their values again, and removes them from the store. Raises what
        Store.get() raises, FailedState for a tensor that has got other memory meanwhile, and RuntimeError where a device
        has no room; then it can be called again."""
        self._store.prefetch(*(name for name, _, _ in self._sizes[:4]))
        while self._sizes:
            name, storage, size = self._sizes[0]
            if storage.nbytes() not in (0, size):
                refuse("penstock.torch.park", "it has got other memory while it was parked", name,
                       wanted="no bytes", got=f"{storage.nbytes()} bytes", kind=FailedState)
            storage.resize_(size)
            if len(self._sizes) > 1:
                self._store.prefetch(self._sizes[1][0])
            self._store.get(name, into=_bytes_of(storage))
            self._store.remove(name)
            del self._sizes[0]

    def __enter__(self) -> Parked:
        return self

    def __exit__(self, *_) -> None:
        self.unpark()


def park(module: torch.nn.Module, store: Store, prefix: str = "") -> Parked:
    """Moves the memory of a module's parameters and buffers, without gradients, to `store`, and frees it, on the host or
    on a device.

    The tensors stay the same objects, with a memory of 0 bytes, and must not be used until Parked.unpark(); tied and
    shared ones are parked once. Their bytes are in the store's host memory or on its drives, verified when they come
    back. prefix: of their names in the store, for several modules in one.

        with penstock.torch.park(model, store):
            …                                     # another program has the memory

    Raises what Store.put() raises, and Unsupported for memory that cannot be freed, such as that of numpy or of a
    memory-mapped checkpoint, or a DTensor: all is as before then."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    storages: dict[int, tuple[str, torch.UntypedStorage]] = {}
    for name, tensor in named:
        if hasattr(tensor, "to_local") or tensor.layout != torch.strided or tensor.device.type == "meta":
            refuse("penstock.torch.park", "it has no memory of its own to free", name, wanted="a dense tensor",
                   got=f"{type(tensor).__name__}, {tensor.layout}, on {tensor.device}", kind=Unsupported)
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0:
            continue
        if not storage.resizable() or (storage.device.type == "cpu" and storage.is_shared()):
            refuse("penstock.torch.park", "its memory cannot be freed", name, wanted="memory that PyTorch has allocated",
                   got="memory of numpy, of a file, or shared with other processes", advice="p.data = p.data.clone()",
                   kind=Unsupported)
        storages.setdefault(storage.data_ptr(), (f"{prefix}{name}", storage))
    taken = [name for name, _ in storages.values() if name in store]
    if taken:
        refuse("penstock.torch.park", "the store has an array with this name", taken[0], advice="give another prefix")
    return Parked(store, list(storages.values()))


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _empty_caches(storages) -> None:
    """PyTorch keeps freed memory of a device for itself."""
    for kind in {storage.device.type for storage in storages} - {"cpu"}:
        getattr(torch, kind).empty_cache()
