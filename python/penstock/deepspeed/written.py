"""Checksums of what this process has written, which its reads are compared with."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import os
import threading

import torch

from .._core import _checksum
from ..errors import Corrupted

Checksum = concurrent.futures.Future


@dataclasses.dataclass
class _File:
    """What it was when its last range was written: another program may write it later."""

    identity: tuple[int, int, int]
    checksums: dict[tuple[int, int], int] = dataclasses.field(default_factory=dict)  # by first byte and size


class Written:
    """Ranges of files with their checksums. Any thread may call it."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._lock = threading.Lock()

    def forget(self, path: str, first: int, nbytes: int) -> None:
        """A range that is about to be written, and those that share bytes with it."""
        with self._lock:
            file = self._files.get(path)
            for begin, size in list(file.checksums) if file is not None else ():
                if begin < first + nbytes and first < begin + size:
                    del file.checksums[begin, size]

    def note(self, path: str, first: int, nbytes: int, checksum: Checksum) -> None:
        """A range that was written."""
        identity = _identity_of(path)
        with self._lock:
            file = self._files.setdefault(path, _File(identity))
            if file.identity[:2] != identity[:2]:
                file.checksums.clear()
            file.identity = identity
            file.checksums[first, nbytes] = checksum.result()

    def check(self, path: str, first: int, nbytes: int, checksum: Checksum) -> None:
        """Raises Corrupted for a range that was read with other bytes than it was written with. What was not written as
        one, and files that have changed since, are not compared."""
        with self._lock:
            file = self._files.get(path)
            wanted = file.checksums.get((first, nbytes)) if file is not None else None
        if wanted is None or wanted == checksum.result() or _identity_of(path) != file.identity:
            return
        reason, got = "the drive has returned other bytes than were written", f"{checksum.result():016x}"
        raise Corrupted(f"{reason}: {path}, {nbytes} bytes at offset {first}, wanted XXH3-64 {wanted:016x}, got {got} [aio_handle]",
                        operation="aio_handle", object=path, reason=reason, wanted=f"{wanted:016x}", got=got, offset=first)


def checksum_of(values: torch.Tensor) -> Checksum:
    """Of a contiguous tensor on the host, which stays unchanged until the result is there: threads compute it."""
    return _threads(os.getpid()).submit(_compute, values)


def _compute(values: torch.Tensor) -> int:
    return _checksum(values.data_ptr(), values.numel() * values.element_size())


def _identity_of(path: str) -> tuple[int, int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_mtime_ns


@functools.lru_cache(maxsize=1)
def _threads(process: int) -> concurrent.futures.ThreadPoolExecutor:
    """A process that was forked has none of them."""
    return concurrent.futures.ThreadPoolExecutor(min(4, os.cpu_count() or 1), f"penstock checksums of {process}")
