"""Updates of AdamW on a GPU, to which the states stream through a few slots."""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import itertools
from collections.abc import Sequence

import torch
from torch import cuda

from .. import Runtime, Workers
from .._core import DeviceAdam, StateLease, TileState
from .offloaded_states import OffloadedStates, dtype_names, flat_of, is_on_host

def is_available() -> bool:
    """Whether PyTorch has a device for it."""
    return cuda.is_available()


@dataclasses.dataclass
class _Move:
    """A tile that is on the device, or on its way."""

    tile: TileState
    number: int  # of the step
    lease: StateLease
    stored: cuda.Event  # its state is in host memory again


class DeviceUpdate:
    """Updates parameters of one device there, a tile at a time: the state of a tile is copied to the device, updated, and
    copied back, while others are copied and updated. The parameter is updated in the order of PyTorch's current stream.
    One thread uses it.

    state_bytes: most of a tile. Raises Unsupported where the library has no kernels for the device."""

    tiles = 3
    """At once: one on its way to the device, one that is updated, one on its way back."""

    def __init__(self, device: torch.device, state_bytes: int, workers: Workers) -> None:
        self._device = device
        self._workers = workers
        self._adam = DeviceAdam(device.type, device.index or 0)
        slots = [torch.empty(state_bytes, dtype=torch.uint8, device=device) for _ in range(self.tiles)]
        self._next_slot = itertools.cycle(slots)
        self._to_device, self._to_host = cuda.Stream(device), cuda.Stream(device)
        self._moves: collections.deque[_Move] = collections.deque()
        self._flags: list[tuple[OffloadedStates, torch.Tensor]] = []

    def step(self, states: OffloadedStates, parameter: torch.Tensor, gradient: torch.Tensor,
             hyperparameters: Sequence[float]) -> None:
        """Begins a step of a parameter. finish() ends it."""
        number = states.completed + 1
        if states.has_master:
            states.take_over(parameter, self._workers)
        flat = flat_of(parameter)
        address, gradient_address = flat.data_ptr(), gradient.data_ptr()
        gradient_dtype = dtype_names[gradient.dtype]
        flags = torch.full((len(states.parts),), -1, dtype=torch.int64, device=self._device)
        for index, (tile, part) in enumerate(states.parts):
            if tile.completed == number:  # by a step that has failed
                continue
            if len(self._moves) == self.tiles:
                self._finish_first()
            if tile.is_empty:
                on_host = flat[part] if is_on_host(flat) else flat[part].cpu()
                tile.initialize(on_host.data_ptr(), self._workers)
            self._update(tile, number, lambda stream, state, tile=tile, part=part, index=index: tile.enqueue_step(
                self._adam, stream, state, address + part.start * flat.element_size(),
                gradient_address + part.start * gradient.element_size(), gradient_dtype, number, *hyperparameters,
                flags.data_ptr() + 8 * index))
        self._flags.append((states, flags))

    def finish(self) -> list[tuple[OffloadedStates, int | None]]:
        """Waits until the states are back. Returns those whose steps have ended, and of each an element near one that is
        not finite now."""
        while self._moves:
            self._finish_first()
        ended, self._flags = self._flags, []
        results = []
        for states, flags in ended:
            found = [part.start + 16384 * block for (_, part), block in zip(states.parts, flags.tolist()) if block >= 0]
            states.completed += 1
            results.append((states, min(found, default=None)))
        return results

    def abandon(self) -> None:
        """After an error: ends what is on its way. A step that is begun again goes on with the other tiles."""
        while self._moves:
            self._finish_first()
        self._flags.clear()

    def _update(self, tile: TileState, number: int, enqueue) -> None:
        lease = tile.lease()
        on_host = torch.frombuffer((ctypes.c_ubyte * lease.nbytes).from_address(lease.address), dtype=torch.uint8)
        on_device = next(self._next_slot)[:lease.nbytes]
        try:
            with cuda.stream(self._to_device):
                on_device.copy_(on_host, non_blocking=True)
            current = cuda.current_stream(self._device)
            current.wait_stream(self._to_device)
            enqueue(current.cuda_stream, on_device.data_ptr())
        except BaseException:
            self._to_device.synchronize()
            lease.end()
            raise
        self._to_host.wait_stream(current)
        with cuda.stream(self._to_host):
            on_host.copy_(on_device, non_blocking=True)
        self._moves.append(_Move(tile, number, lease, self._to_host.record_event()))

    def _finish_first(self) -> None:
        move = self._moves.popleft()
        move.stored.synchronize()
        move.lease.end()
        move.tile.complete(move.number)


class Registered:
    """Host memory of a runtime that CUDA copies from and to without waiting."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime  # the memory lives as long
        self._address, nbytes = runtime.host_memory()
        cuda.check_error(cuda.cudart().cudaHostRegister(self._address, nbytes, 0))

    def end(self) -> None:
        cuda.check_error(cuda.cudart().cudaHostUnregister(self._address))
