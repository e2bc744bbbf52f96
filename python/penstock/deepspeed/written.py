"""Checksums of what this process has written, which its reads are compared with."""

from __future__ import annotations

import bisect
import concurrent.futures
import functools
import os
import threading

import torch

from .._core import _checksum
from ..errors import Corrupted

Checksum = concurrent.futures.Future
Identity = tuple[int, int, int]


class _File:
    """Ranges that do not overlap, in their order."""

    def __init__(self, identity: Identity | None) -> None:
        self.identity = identity  # when the last range was written: another program may write it later
        self._begins: list[int] = []
        self._ranges: dict[int, tuple[int, int]] = {}  # size and checksum, by the first byte

    def forget(self, first: int, nbytes: int) -> None:
        index = max(0, bisect.bisect_right(self._begins, first) - 1)
        while index < len(self._begins) and self._begins[index] < first + nbytes:
            begin = self._begins[index]
            if begin + self._ranges[begin][0] > first:
                del self._begins[index], self._ranges[begin]
            else:
                index += 1

    def note(self, first: int, nbytes: int, checksum: int) -> None:
        self.forget(first, nbytes)
        bisect.insort(self._begins, first)
        self._ranges[first] = nbytes, checksum

    def find(self, first: int, nbytes: int) -> int | None:
        size, checksum = self._ranges.get(first, (-1, None))
        return checksum if size == nbytes else None


class Written:
    """Ranges of files with their checksums. Any thread may call it."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._lock = threading.Lock()
        self._purge_at = 64  # files

    def forget(self, path: str, first: int, nbytes: int) -> None:
        """A range that is about to be written. What a file has that another program has changed is not known any more."""
        with self._lock:
            file = self._files.get(path)
            if file is None:
                return
            if file.identity != _identity_of(path):
                del self._files[path]
            else:
                file.forget(first, nbytes)

    def note(self, path: str, first: int, nbytes: int, checksum: Checksum) -> None:
        """A range that was written."""
        value, identity = checksum.result(), _identity_of(path)
        with self._lock:
            if identity is None:  # it was removed meanwhile
                self._files.pop(path, None)
                return
            file = self._files.setdefault(path, _File(identity))
            if nbytes > 0:
                file.identity = identity
                file.note(first, nbytes, value)
            if len(self._files) > self._purge_at:
                for name in [name for name in self._files if not os.path.exists(name)]:
                    del self._files[name]
                self._purge_at = 2 * len(self._files) + 64

    def check(self, path: str, first: int, nbytes: int, checksum: Checksum) -> None:
        """Raises Corrupted for a range that was read with other bytes than it was written with. What was not written as
        one, and files that have changed since, are not compared."""
        with self._lock:
            file = self._files.get(path)
            wanted = file.find(first, nbytes) if file is not None else None
        if wanted is None or wanted == checksum.result() or _identity_of(path) != file.identity:
            return
        reason, got = "the drive has returned other bytes than were written", f"{checksum.result():016x}"
        raise Corrupted(f"{reason}: {path}, {nbytes} bytes at offset {first}, wanted XXH3-64 {wanted:016x}, got {got} [aio_handle]",
                        operation="aio_handle", object=path, reason=reason, wanted=f"{wanted:016x}", got=got, offset=first)


def checksum_of(values: torch.Tensor) -> Checksum:
    """Of a contiguous tensor on the host, which stays unchanged until the result is there: threads compute it."""
    try:
        return _threads(os.getpid()).submit(_compute, values)
    except RuntimeError:  # the interpreter ends: it starts no threads
        done: Checksum = concurrent.futures.Future()
        done.set_result(_compute(values))
        return done


def _compute(values: torch.Tensor) -> int:
    return _checksum(values.data_ptr(), values.numel() * values.element_size())


def _identity_of(path: str) -> Identity | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


@functools.lru_cache(maxsize=1)
def _threads(process: int) -> concurrent.futures.ThreadPoolExecutor:
    """A process that was forked has none of them."""
    return concurrent.futures.ThreadPoolExecutor(min(4, os.cpu_count() or 1), f"penstock checksums of {process}")
