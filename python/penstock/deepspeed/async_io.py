"""DeepSpeed's operation async_io, on penstock.Files."""

from __future__ import annotations

import os

import torch

from .. import Files
from ..errors import Corrupted, InvalidArgument
from . import pin_memory
from .written import Written, checksum_of

__all__ = ["aio_handle", "aio_read", "aio_write", "deepspeed_memcpy"]

_block = 4096  # bytes: requests are of whole ones
_written = Written()  # by all handles of the process
os.register_at_fork(after_in_child=_written.__init__)


class aio_handle:  # noqa: N801, DeepSpeed's name
    """DeepSpeed's class of the same name. Calls raise where it printed a line and returned -1, or ended the process:
    penstock.Error, which names the file and the offset. What is read is compared with the checksum of what this process has
    written there.

    single_submit and overlap_events have no meaning: the engines of Files submit as the kernel takes it."""

    def __init__(self, block_size: int = 1 << 20, queue_depth: int = 128, single_submit: bool = False,
                 overlap_events: bool = False, intra_op_parallelism: int = 1) -> None:
        self._block_size, self._queue_depth = block_size, queue_depth
        self._single_submit, self._overlap_events = single_submit, overlap_events
        self._intra_op_parallelism = intra_op_parallelism
        request_max = min(max(-(-block_size // _block) * _block, _block), 1 << 30)
        self._files = Files(threads=intra_op_parallelism, depth=min(queue_depth, 4096), request_max=request_max)
        self._transfers: list[_Transfer] = []  # since the last wait()

    def get_block_size(self) -> int:
        return self._block_size

    def get_queue_depth(self) -> int:
        return self._queue_depth

    def get_single_submit(self) -> bool:
        return self._single_submit

    def get_overlap_events(self) -> bool:
        return self._overlap_events

    def get_intra_op_parallelism(self) -> int:
        return self._intra_op_parallelism

    def get_alignment(self) -> int:
        return self._intra_op_parallelism * _block

    def read(self, buffer: torch.Tensor, filename: str, validate: bool, file_offset: int = 0) -> int:
        self.pread(buffer, filename, validate, False, file_offset)
        return 0

    def write(self, buffer: torch.Tensor, filename: str, validate: bool, file_offset: int = 0) -> int:
        self.pwrite(buffer, filename, validate, False, file_offset)
        return 0

    def pread(self, buffer: torch.Tensor, filename: str, validate: bool, is_async: bool = False, file_offset: int = 0,
              **named) -> int:
        return self._start(_Transfer(True, buffer, filename, validate, file_offset), named.get("async", is_async))

    def pwrite(self, buffer: torch.Tensor, filename: str, validate: bool, is_async: bool = False, file_offset: int = 0,
               **named) -> int:
        return self._start(_Transfer(False, buffer, filename, validate, file_offset), named.get("async", is_async))

    def sync_pread(self, buffer: torch.Tensor, filename: str, file_offset: int = 0) -> int:
        return self._start(_Transfer(True, buffer, filename, False, file_offset), False)

    def sync_pwrite(self, buffer: torch.Tensor, filename: str, file_offset: int = 0) -> int:
        return self._start(_Transfer(False, buffer, filename, False, file_offset), False)

    def async_pread(self, buffer: torch.Tensor, filename: str, file_offset: int = 0) -> int:
        return self._start(_Transfer(True, buffer, filename, False, file_offset), True)

    def async_pwrite(self, buffer: torch.Tensor, filename: str | int | None = None, file_offset: int = 0,
                     fd: int | None = None) -> int:
        """`fd`, or a number as `filename`: a file that the caller has opened."""
        name = filename if fd is None else fd
        return self._start(_Transfer(False, buffer, _path_of(name) if isinstance(name, int) else name, False,
                                     file_offset), True)

    def wait(self) -> int:
        """Waits for all transfers. Returns how many have ended, and raises the first one's error."""
        transfers, self._transfers = self._transfers, []
        self._files.wait()
        for transfer in transfers:
            transfer.sum_up()
        for transfer in transfers:
            transfer.finish()
        return len(transfers)

    def _start(self, transfer: _Transfer, is_async: bool) -> int:
        transfer.begin(self._files)
        self._transfers.append(transfer)
        return 0 if is_async else self.wait()

    new_cpu_locked_tensor = staticmethod(pin_memory.new_cpu_locked_tensor)
    free_cpu_locked_tensor = staticmethod(pin_memory.free_cpu_locked_tensor)
    is_pinned = staticmethod(pin_memory.is_pinned)


class _Transfer:
    """One read or write. A buffer on another device passes through host memory."""

    def __init__(self, is_read: bool, buffer: torch.Tensor, filename: str, validate: bool, offset: int) -> None:
        if not isinstance(buffer, torch.Tensor):
            raise InvalidArgument(f"the buffer is no tensor: {filename}, got {type(buffer).__name__} [aio_handle]",
                                  operation="aio_handle", object=str(filename), reason="the buffer is no tensor")
        if not buffer.is_contiguous():
            raise InvalidArgument(f"the buffer is not contiguous: {filename}, got strides {buffer.stride()} [aio_handle]",
                                  operation="aio_handle", object=str(filename), reason="the buffer is not contiguous")
        self._is_read, self._buffer, self._filename, self._validate = is_read, buffer, filename, validate
        self._offset = offset
        self._host = buffer.detach() if buffer.device.type == "cpu" else None

    def begin(self, files: Files) -> None:
        if self._host is None:
            self._host = torch.empty_like(self._buffer, device="cpu")
            if not self._is_read:
                self._host.copy_(self._buffer)
        if self._is_read:
            files.begin_read(self._filename, self._host, self._offset)
            return
        _written.forget(*self._range)
        files.begin_write(self._filename, self._host, self._offset)
        self._checksum = checksum_of(self._host)  # while the drive writes

    @property
    def _range(self) -> tuple[str, int, int]:
        return os.fspath(self._filename), self._offset, self._host.numel() * self._host.element_size()

    def sum_up(self) -> None:
        if self._is_read:
            self._checksum = checksum_of(self._host)

    def finish(self) -> None:
        (_written.check if self._is_read else _written.note)(*self._range, self._checksum)
        if self._is_read and self._buffer.device.type != "cpu":
            self._buffer.copy_(self._host)
        if self._validate:
            self._compare()

    def _compare(self) -> None:
        """With what the page cache has."""
        values = self._host.reshape(-1).view(torch.uint8).numpy()
        with open(self._filename, "rb") as file:
            file.seek(self._offset)
            if file.read(values.nbytes) == values.tobytes():
                return
        raise Corrupted(f"the file has other bytes than the buffer: {self._filename}, at {self._offset} [aio_handle]",
                        operation="aio_handle", object=str(self._filename), offset=self._offset,
                        reason="the file has other bytes than the buffer")


def _path_of(descriptor: int) -> str:
    name = os.readlink(f"/proc/self/fd/{descriptor}")
    return name if os.path.exists(name) else f"/proc/self/fd/{descriptor}"


def aio_read(buffer: torch.Tensor, filename: str, block_size: int, queue_depth: int, single_submit: bool,
             overlap_events: bool, validate: bool) -> int:
    return aio_handle(block_size, queue_depth, single_submit, overlap_events).read(buffer, filename, validate)


def aio_write(buffer: torch.Tensor, filename: str, block_size: int, queue_depth: int, single_submit: bool,
              overlap_events: bool, validate: bool) -> int:
    return aio_handle(block_size, queue_depth, single_submit, overlap_events).write(buffer, filename, validate)


def deepspeed_memcpy(destination: torch.Tensor, source: torch.Tensor) -> int:
    destination.view(-1).copy_(source.view(-1))
    return 0
