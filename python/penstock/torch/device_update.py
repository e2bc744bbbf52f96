"""Updates of AdamW on a GPU, to which the states stream through a few slots."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import dataclasses
from collections.abc import Iterator, Sequence

import torch
from torch import cuda

from .. import Runtime, Workers, state_bytes
from .._core import DeviceAdam, StateLease, TileState
from ..errors import BudgetTooSmall, Error
from .arguments import refuse
from .offloaded_states import Update, dtype_names, flat_of, is_on_host

_tiles = 3  # at once: one on its way to the device, one that is updated, one on its way back


def is_available() -> bool:
    """Whether PyTorch has a device for it."""
    return cuda.is_available()


@dataclasses.dataclass
class _Move:
    """A tile whose state is on the device, or on its way."""

    tile: TileState
    number: int  # of the step
    lease: StateLease
    on_host: torch.Tensor
    on_device: torch.Tensor
    is_updated: bool = False  # there, or will be
    stored: cuda.Event | None = None  # its state is in host memory again


class DeviceUpdate:
    """Updates parameters of one device there, a tile at a time: the state of a tile is copied to the device, updated, and
    copied back, while others are copied and updated. One thread at a time uses it. Raises Unsupported where the library
    has no kernels for the device."""

    def __init__(self, device: torch.device, workers: Workers) -> None:
        self._device = device
        self._workers = workers
        with _current(device):
            self._adam = DeviceAdam(device.type, device.index or 0)
            self._to_device, self._to_host = cuda.Stream(device), cuda.Stream(device)
        self._slots: list[torch.Tensor] = []
        self._free: list[torch.Tensor] = []
        self._moves: collections.deque[_Move] = collections.deque()
        self._flags: list[tuple[Update, torch.Tensor]] = []  # of each update's tiles: a block with a value that is not finite

    def run(self, updates: Sequence[Update], found: list[tuple[Update, int]]) -> None:
        """As HostUpdate.run(), in the order of PyTorch's current stream. It waits until the states are back."""
        self.finish(found)
        self._flags = [(update, torch.full((len(update.states.parts),), -1, dtype=torch.int64, device=self._device))
                       for update in updates]
        with _current(self._device):
            try:
                self._prepare(updates)
                for update, flags in self._flags:
                    self._start(update, flags)
            finally:
                self.finish(found)

    def finish(self, found: list[tuple[Update, int]]) -> None:
        """Waits until the states are back: also those that an interrupt of run() has left on the device."""
        with _current(self._device):
            while self._moves:
                self._finish_first()
            found += [(update, part.start + 16384 * block) for update, flags in self._flags
                      for (_, part), block in zip(update.states.parts, flags.tolist()) if block >= 0]
            self._flags = []

    def _prepare(self, updates: Sequence[Update]) -> None:
        nbytes = max((state_bytes(update.states.format, tile.elements) for update in updates for tile in update.states.tiles),
                     default=0)
        if not self._slots or nbytes > self._slots[0].numel():
            self._slots = []
            self._slots = [torch.empty(nbytes, dtype=torch.uint8, device=self._device) for _ in range(_tiles)]
        self._free = list(self._slots)
        current = cuda.current_stream(self._device)  # may use the slots' memory still, for what it was before
        self._to_device.wait_stream(current)

    def _start(self, update: Update, flags: torch.Tensor) -> None:
        states, number, gradient = update.states, update.number, update.ready_gradient()
        if states.is_changed:
            self._with_room(lambda: states.take_over(update.parameter, self._workers))
        flat = flat_of(update.parameter)
        for index, (tile, part) in enumerate(states.parts):
            if tile.completed == number:
                continue
            if tile.is_empty:
                on_host = flat[part] if is_on_host(flat) else flat[part].cpu()
                self._with_room(lambda tile=tile, on_host=on_host: tile.initialize(on_host.data_ptr(), self._workers))
            if not self._free:
                self._finish_first()
            self._update(tile, number, flat.data_ptr() + part.start * flat.element_size(),
                         gradient.data_ptr() + part.start * gradient.element_size(), dtype_names[gradient.dtype], number,
                         *update.hyperparameters, flags.data_ptr() + 8 * index)
        update.check_memory()

    def _update(self, tile: TileState, number: int, *arguments) -> None:
        lease = self._with_room(tile.lease)
        on_host = torch.frombuffer((ctypes.c_ubyte * lease.nbytes).from_address(lease.address), dtype=torch.uint8)
        move = _Move(tile, number, lease, on_host, self._free.pop()[:lease.nbytes])
        self._moves.append(move)
        with cuda.stream(self._to_device):
            _copy(move.on_device, on_host)
        current = cuda.current_stream(self._device)
        current.wait_stream(self._to_device)
        move.is_updated = True
        try:
            _enqueue(tile, self._adam, current.cuda_stream, move.on_device.data_ptr(), *arguments)
        except Error:
            move.is_updated = False
            raise
        self._store(move)

    def _store(self, move: _Move) -> None:
        self._to_host.wait_stream(cuda.current_stream(self._device))
        with cuda.stream(self._to_host):
            _copy(move.on_host, move.on_device)
        move.stored = self._to_host.record_event()

    def _finish_first(self) -> None:
        move = self._moves[0]
        if move.is_updated and move.stored is None:  # it was interrupted
            self._store(move)
        if move.stored is not None:
            move.stored.synchronize()
            move.tile.complete(move.number)
        else:
            self._to_device.synchronize()
        move.lease.end()
        self._free.append(next(slot for slot in self._slots if slot.data_ptr() == move.on_device.data_ptr()))
        self._moves.popleft()

    def _with_room(self, call):
        """Leases of what is on its way may lie so that the memory between them is too small for one more."""
        while True:
            try:
                return call()
            except BudgetTooSmall:
                if not self._moves:
                    raise
                self._finish_first()


class Registered:
    """Host memory of a runtime that CUDA copies from and to without waiting."""

    def __init__(self, runtime: Runtime, device: torch.device) -> None:
        self._runtime = runtime  # the memory lives as long
        self._address, nbytes = runtime.host_memory()
        with _current(device):
            code = int(cuda.cudart().cudaHostRegister(self._address, nbytes, 1))  # for all devices
        if code != 0:
            refuse("CUDA does not register the memory of the states", "budget", got=f"{nbytes} bytes, error {code} of CUDA",
                   advice="raise the limit of locked memory (ulimit -l), or give a budget and a path", kind=Error)

    def end(self) -> None:
        cuda.cudart().cudaHostUnregister(self._address)


@contextlib.contextmanager
def _current(device: torch.device) -> Iterator[None]:
    """The library's calls leave a device current."""
    with cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        yield


def _copy(to: torch.Tensor, source: torch.Tensor) -> None:
    to.copy_(source, non_blocking=True)


def _enqueue(tile: TileState, *arguments) -> None:
    tile.enqueue_step(*arguments)
