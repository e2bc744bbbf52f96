"""What penstock.deepspeed's aio_handle has written, and reads again."""

import multiprocessing
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
from penstock.deepspeed import async_io  # noqa: E402


def write(handle, path, values, offset=0):
    handle.sync_pwrite(values, str(path), offset)


def read(handle, path, offset=0, nbytes=4096):
    values = torch.empty(nbytes, dtype=torch.uint8)
    handle.sync_pread(values, str(path), offset)
    return values


def block(value):
    return torch.full((4096,), value, dtype=torch.uint8)


def test_what_the_drive_returns_otherwise_is_an_error(directory):
    handle, path = async_io.aio_handle(), directory / "a"
    write(handle, path, block(1))
    write(handle, path, block(2), 4096)
    with open(path, "r+b") as file:  # not seen: the time of the file's last change is set back
        status = path.stat()
        file.seek(5000)
        file.write(b"x")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert torch.equal(read(handle, path), block(1))
    with pytest.raises(penstock.Corrupted, match=f"{path}, 4096 bytes at offset 4096") as corrupted:
        read(handle, path, 4096)
    assert corrupted.value.offset == 4096


def test_what_another_program_has_written_is_taken(directory):
    handle, path = async_io.aio_handle(), directory / "a"
    for offset in (0, 4096):
        write(handle, path, block(1), offset)
    with open(path, "r+b") as file:
        file.write(b"another")
    assert bytes(read(handle, path)[:7]) == b"another"
    write(handle, path, block(3), 4096)
    assert bytes(read(handle, path)[:7]) == b"another" and torch.equal(read(handle, path, 4096), block(3))


def test_ranges_that_overlap_are_those_of_the_last_write(directory):
    handle, path = async_io.aio_handle(), directory / "a"
    write(handle, path, torch.cat([block(1), block(2)]))
    write(handle, path, block(3), 4096)
    assert torch.equal(read(handle, path, nbytes=8192), torch.cat([block(1), block(3)]))
    for number in range(3000):
        write(handle, path, block(number % 251), 4096 * number)
    assert all(torch.equal(read(handle, path, 4096 * number), block(number % 251)) for number in range(0, 3000, 97))


def test_a_file_that_was_removed_is_none(directory):
    handle, path = async_io.aio_handle(), directory / "a"
    write(handle, path, block(1))
    path.unlink()
    with pytest.raises(penstock.NotFound):
        read(handle, path)


def work(path):
    handle = async_io.aio_handle()
    write(handle, path, block(7))
    assert torch.equal(read(handle, path), block(7))


def test_a_forked_process_has_its_own(directory):
    write(async_io.aio_handle(), directory / "a", block(1))
    with async_io._written._lock:  # as if another thread were in it
        process = multiprocessing.get_context("fork").Process(target=work, args=(directory / "b",))
        process.start()
        process.join(30)
    assert process.exitcode == 0


def test_the_end_of_the_interpreter_writes_too(directory):
    program = f"""
import atexit, torch
from penstock.deepspeed import async_io
handle = async_io.aio_handle()
def last():
    handle.sync_pwrite(torch.ones(4096, dtype=torch.uint8), "{directory}/last")
    read = torch.zeros(4096, dtype=torch.uint8)
    handle.sync_pread(read, "{directory}/last")
    print(int(read.sum()))
atexit.register(last)
handle.sync_pwrite(torch.ones(4096, dtype=torch.uint8), "{directory}/first")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert (ended.stdout, ended.returncode) == ("4096\n", 0), ended.stderr
