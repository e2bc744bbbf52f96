"""Named arrays in host memory under a budget, and on drives."""

from __future__ import annotations

import numbers
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from ._core import Path, Runtime, Tensor, _Calls, _Semaphore
from .array_bytes import ArrayType, array_type_of, bytes_of, is_on_host, note_written, writable_bytes_of
from .errors import BudgetTooSmall, Error, FailedState, NoSpace, NotFound, Unsupported, refuse

_piece_least, _piece_most = 4096, 16 << 20  # bytes
_pieces_ahead = 4


class _Entry:
    """One array: its pieces are tensors of the runtime."""

    def __init__(self, type: ArrayType, pieces: list[Tensor]) -> None:
        self.type = type
        self.pieces = pieces
        self.lock = threading.Lock()
        self.is_torn = True  # until it was written
        self.is_removed = False


class Store:
    """Named arrays in host memory under a budget, and on drives.

    budget: bytes of host memory, allocated by the call. paths: on drives, one penstock.Path each; none: all arrays stay
    in memory. An array leaves memory when others need the room, the one first whose use is furthest away. What is read
    back is verified. Arrays may be larger than the budget. timeline_file: as of penstock.Runtime.

    Arrays are of numpy, tensors of PyTorch on any device, or other buffers; get() returns what was put in, in host
    memory. Any thread may call it; calls for one name follow each other. Raises FailedState after close(), in a forked
    process, and in a signal handler that interrupts another call.

        store = penstock.Store(8 << 30, [penstock.Path("/nvme", capacity=64 << 30)])
        store.put("layer 0", weights)
        store.prefetch("layer 0")
        weights = store.get("layer 0")
        store.park()                    # the memory is free for another program
        store.unpark()
    """

    def __init__(self, budget: int, paths: Sequence[Path] = (), *, pinning: str = "none",
                 timeline_file: str | os.PathLike | None = None) -> None:
        if isinstance(budget, bool) or not isinstance(budget, numbers.Integral) or not _piece_least <= budget < 1 << 60:
            refuse("Store", "it is no number of bytes for arrays", "budget", wanted=f"an integer, from {_piece_least} to 2**60 - 1",
                   got=repr(budget))
        if not isinstance(paths, Sequence) or not all(isinstance(path, Path) for path in paths):
            refuse("Store", "it has something else than paths", "paths", wanted="a sequence of penstock.Path", got=repr(paths),
                   advice='[penstock.Path("/nvme", capacity=64 << 30)]')
        budget = int(budget)
        self._began = time.monotonic()
        self._runtime = Runtime(budget, list(paths), pinning=pinning, lookahead=max(64 << 20, budget), timeline_file=timeline_file)
        self._budget = budget
        self._piece = max(_piece_least, min(_piece_most, budget // 4 // 4096 * 4096))
        # However these lie in memory, the room between them holds one piece more.
        self._leases = _Semaphore((budget // self._piece + 1) // 2)
        self._capacity = sum(path.capacity for path in paths)
        self._is_on_disk = len(paths) > 0
        self._entries: dict[str, _Entry] = {}
        self._recent: dict[str, None] = {}  # names, the last used one last
        # In this order, within a call: what a signal handler calls would wait for a lock that its thread has.
        self._calls = _Calls(many_threads=True, nested=False)
        self._change = threading.Lock()  # held by put(), remove(), park() and unpark()
        self._lock = threading.Lock()  # of the dictionaries
        self._parked: set[object] = set()  # what penstock.torch.park() has put here
        self._process = os.getpid()
        self._is_closed = self._is_parked = False

    def put(self, name: str, values) -> None:
        """Copies an array into the store, in the place of one with this name.

        Raises InvalidArgument for what has no bytes; NoSpace and BudgetTooSmall, before anything changes; errors of the
        disk, after which the array is to be put again."""
        self._put(name, values, self._room())

    def _put(self, name: str, values, room: int) -> None:
        """Starts to write a new array to the drives at once if it is larger than `room`."""
        self._check_name(name, "Store.put")
        type = array_type_of(values, "Store.put")
        flat = bytes_of(values, type, "Store.put")
        with self._call("Store.put"), self._change:
            self._check_not_parked("Store.put")
            former = self._entries.get(name)
            is_in_place = former is not None and former.type.nbytes == type.nbytes
            entry = former if is_in_place else _Entry(type, self._add_pieces(name, type.nbytes, leaves=type.nbytes > room))
            with entry.lock:
                try:
                    self._write(entry, flat)
                except BaseException:
                    if not is_in_place:
                        self._free(entry)
                    raise
                entry.type, entry.is_torn = type, False
            with self._lock:
                self._entries[name] = entry
            self._note_use(name)
            if former is not None and not is_in_place:
                with former.lock:
                    self._free(former)

    def get(self, name: str, into=None):
        """The array with this name: a new one in host memory, or `into`, of the same type and shape, which it fills.

        Raises NotFound; InvalidArgument, for another `into`; Corrupted and others, of the disk; FailedState while the
        store is parked, and for an array whose put() has failed."""
        def read(entry: _Entry):
            if entry.is_torn:
                refuse("Store.get", "a put() of it has failed half-way", repr(name), advice="put it again", kind=FailedState)
            self._check_not_parked("Store.get")
            result = entry.type.empty() if into is None else into
            flat = writable_bytes_of(result, entry.type, "Store.get")
            try:
                self._read(entry, flat)
            finally:
                note_written(result, entry.type)
            return result
        with self._call("Store.get"):
            result = self._use(name, "Store.get", read)
            self._note_use(name)
        return result

    def prefetch(self, *names: str) -> None:
        """Hints that these arrays are used soon, in this order: they are loaded as far as memory has room."""
        for name in names:
            with self._call("Store.prefetch"):
                self._use(name, "Store.prefetch", lambda entry: [piece.prefetch() for piece in entry.pieces])

    def remove(self, name: str) -> None:
        """Frees what the array has. Raises NotFound."""
        with self._call("Store.remove"), self._change:
            entry = self._entry(name, "Store.remove")
            with self._lock:
                del self._entries[name]
                self._recent.pop(name, None)
            with entry.lock:
                self._free(entry)

    def park(self, tier: str = "nvme") -> int:
        """Stores all arrays on the drives and gives the host memory to the operating system, so that another program can
        use it. Returns the bytes; take_messages() says why they are fewer than the budget. Until unpark(), get() and
        put() raise FailedState.

        Raises, and changes nothing: FailedState, when it is parked; Unsupported, for a store without paths; BudgetTooSmall
        while another thread is in get(); errors of the disk."""
        if tier != "nvme":
            refuse("Store.park", "arrays of a store are in host memory or on drives", "tier", wanted='"nvme"', got=repr(tier))
        self._check_open("Store.park")
        if not self._is_on_disk:
            refuse("Store.park", "it has no paths", "the store", wanted="a drive for its arrays", kind=Unsupported)
        with self._call("Store.park"), self._change:
            parked = self._runtime.park()
            self._is_parked = True
            return parked

    def unpark(self, load: bool = True) -> None:
        """Takes the memory again. load: loads the arrays that were used last, as many as it holds; otherwise they are
        loaded when they are used. Raises FailedState, when it is not parked; NoSpace, after which it can be called again;
        errors of the disk, which get() raises again."""
        with self._call("Store.unpark"), self._change:
            self._runtime.unpark()
            self._is_parked = False
            if not load:
                return
            room, loaded = self._budget, []
            with self._lock:
                recent = [name for name in self._recent if name in self._entries]
            for name in reversed(recent):
                room -= self._entries[name].type.nbytes
                if room < 0:
                    break
                loaded.append(self._entries[name])
            pieces = [piece for entry in reversed(loaded) if not entry.is_torn for piece in entry.pieces]
            for piece in pieces:
                piece.prefetch()
            for piece in pieces:
                with self._leases, piece.lease("read"):
                    pass

    def flush(self) -> None:
        """Waits for what is on its way to the drives. Raises the first error."""
        with self._call("Store.flush"):
            self._runtime.flush()

    def nbytes(self, name: str) -> int:
        return self._entry(name, "Store.nbytes").type.nbytes

    def names(self) -> list[str]:
        self._check_open("Store.names")
        return list(self._entries)

    def __contains__(self, name: str) -> bool:
        self._check_open("Store.__contains__")
        return name in self._entries

    def __len__(self) -> int:
        self._check_open("Store.__len__")
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    @property
    def notes(self) -> list[str]:
        """Options that are not in effect, with reasons."""
        self._check_open("Store.notes")
        return self._runtime.notes

    def report(self) -> dict[str, float]:
        """That of the runtime: bytes read from the drives and written to them, seconds of waits, and so on."""
        self._check_open("Store.report")
        return self._runtime.report()

    def report_text(self, format: str = "text", *, rank: int = 0) -> str:
        """What the store has taken and moved since it was made, by drive. format: "text", "json", or "prometheus" for its
        text format. rank: of this process, which metrics have as a label."""
        self._check_open("Store.report_text")
        return self._runtime.report_text(format, elapsed=time.monotonic() - self._began, rank=rank)

    def save_report(self, file: str | os.PathLike, format: str | None = None, *, rank: int = 0) -> None:
        """Replaces a file by such a report at once, so that another program reads a whole one. Without a format its
        extension decides: ".json", ".prom" for Prometheus, or else text."""
        self._check_open("Store.save_report")
        self._runtime.save_report(file, format, elapsed=time.monotonic() - self._began, rank=rank)

    def take_messages(self) -> list[str]:
        """What has happened since the last call and was no error."""
        self._check_open("Store.take_messages")
        return self._runtime.take_messages()

    def close(self) -> None:
        """Frees the memory and the space on the drives. Every later call but this one raises FailedState."""
        self._runtime.close()
        self._is_closed = True

    def __reduce_ex__(self, protocol):
        raise TypeError("penstock.Store cannot be copied or pickled: its arrays are in its own memory and files. Make one in "
                        "each process, and copy arrays with get() and put()")

    def __enter__(self) -> Store:
        self._check_open("Store.__enter__")
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _check_open(self, function: str) -> None:
        if self._is_closed:
            refuse(function, "it was closed", "the store", advice="make another one", kind=FailedState)
        if os.getpid() != self._process:
            refuse(function, "this process was forked from the one that made it, and has none of its threads", "the store",
                   got=f"process {os.getpid()}", advice="make it after the fork, or start processes by multiprocessing's "
                   "\"spawn\"", kind=FailedState)

    def _call(self, function: str) -> _Calls:
        """The context of a call that may wait. One in a signal handler would wait for the call that it interrupts."""
        self._check_open(function)
        return self._calls(function, "the store")

    def _check_not_parked(self, function: str) -> None:
        if self._is_parked:
            refuse(function, "it is parked", "the store", advice="unpark() it", kind=FailedState)

    @staticmethod
    def _check_name(name: str, function: str) -> None:
        if not isinstance(name, str) or any("\ud800" <= letter <= "\udfff" for letter in name):
            refuse(function, "it is no text", "name", wanted="a string, without surrogates", got=ascii(name))

    def _entry(self, name: str, function: str) -> _Entry:
        self._check_open(function)
        self._check_name(name, function)
        entry = self._entries.get(name)
        if entry is None:
            refuse(function, "there is no such array", repr(name), wanted="a name that was put", kind=NotFound)
        return entry

    def _use(self, name: str, function: str, use: Callable[[_Entry], object]):
        """What `use` returns of the array, which is locked meanwhile."""
        while True:
            entry = self._entry(name, function)
            with entry.lock:
                if not entry.is_removed:  # put() of another size has replaced it meanwhile
                    return use(entry)

    def _note_use(self, name: str) -> None:
        with self._lock:
            if name in self._entries:
                self._recent.pop(name, None)
                self._recent[name] = None

    def _room(self) -> int:
        """The budget less the bytes of all arrays, those on the drives too."""
        return self._budget - self._bytes()

    def _bytes(self) -> int:
        return sum(entry.type.nbytes for entry in list(self._entries.values()))

    def _add_pieces(self, name: str, nbytes: int, leaves: bool) -> list[Tensor]:
        pieces = []
        try:
            for first in range(0, nbytes, self._piece):
                pieces.append(self._runtime.add(name, min(self._piece, nbytes - first), in_memory=not self._is_on_disk,
                                                write_behind=self._is_on_disk and leaves))
        except BaseException as error:
            for piece in pieces:
                piece.remove()
            if isinstance(error, (NoSpace, BudgetTooSmall)):
                most, what = (self._capacity, "capacity of its paths") if self._is_on_disk else (self._budget, "budget")
                refuse("Store.put", f"the {what} has no room for it, beside the other arrays", repr(name),
                       wanted=f"{nbytes} bytes", got=f"{most - self._bytes()} free of {most}",
                       advice="remove() arrays, or make the store larger", kind=type(error))
            raise
        return pieces

    def _free(self, entry: _Entry) -> None:
        entry.is_removed = True
        while entry.pieces:
            entry.pieces.pop().remove()

    def _write(self, entry: _Entry, flat) -> None:
        staging = None if is_on_host(flat) else self._staging(flat)
        first, was_torn = 0, entry.is_torn
        for piece in entry.pieces:
            part, begin = flat, first
            if staging is not None:
                part, begin = staging[:piece.nbytes].copy_(flat[first:first + piece.nbytes]), 0
            with self._leases:
                entry.is_torn = True  # until all pieces are written; an interrupt may come right after the first
                try:
                    piece.write(part, first=begin)
                except Error:  # this piece is as it was
                    entry.is_torn = was_torn or first > 0
                    raise
            first += piece.nbytes

    def _read(self, entry: _Entry, flat) -> None:
        staging = None if is_on_host(flat) else self._staging(flat)
        first = 0
        for number, piece in enumerate(entry.pieces):
            for ahead in entry.pieces[number + 1:number + 1 + _pieces_ahead]:
                ahead.prefetch()
            part, begin = (flat, first) if staging is None else (staging[:piece.nbytes], 0)
            with self._leases:
                piece.read(part, first=begin)
            if staging is not None:
                flat[first:first + piece.nbytes].copy_(part)
            first += piece.nbytes

    def _staging(self, flat):
        """Host memory through which a tensor of another device passes."""
        torch = sys.modules["torch"]
        return torch.empty(min(self._piece, max(1, flat.numel())), dtype=torch.uint8, device="cpu",
                           pin_memory=flat.device.type == "cuda")
