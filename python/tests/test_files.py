"""penstock.Files: ranges of files, moved in the background."""

import gc
import os
import subprocess
import sys
import threading
import weakref

import numpy as np
import penstock
import pytest


def test_what_was_written_is_read(directory):
    written = np.random.default_rng(1).integers(0, 256, 1_000_003, dtype=np.uint8)
    read = np.zeros_like(written)
    with penstock.Files(threads=2) as files:
        files.begin_write(directory / "a", written, offset=4097)
        files.begin_write(str(directory / "b"), written)
        assert files.started == 2
        assert files.wait() == 2 and files.started == 0
        files.begin_read(directory / "a", read, offset=4097)
        assert files.wait() == 1
    assert (read == written).all()
    assert (directory / "b").read_bytes() == written.tobytes()
    assert (directory / "b").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", [bytearray, lambda size: memoryview(bytearray(size)),
                                  lambda size: np.zeros((size // 8, 2), np.float32)])
def test_any_buffer_is_taken(directory, kind):
    (directory / "a").write_bytes(bytes(range(256)) * 16)
    into = kind(4096)
    with penstock.Files() as files:
        files.begin_read(directory / "a", into)
        files.wait()
    assert bytes(memoryview(into).cast("B")) == bytes(range(256)) * 16


def test_memory_stays_until_the_transfer_has_ended(directory):
    files = penstock.Files()
    array = np.ones(1 << 20, np.uint8)
    gone = weakref.ref(array)
    files.begin_write(directory / "a", array)
    del array
    gc.collect()
    assert gone() is not None
    files.wait()
    gc.collect()
    assert gone() is None
    assert (directory / "a").read_bytes() == b"\1" * (1 << 20)


def test_an_object_that_is_forgotten_waits_for_its_transfers(directory):
    files = penstock.Files()
    files.begin_write(directory / "a", np.ones(1 << 22, np.uint8))
    del files
    assert (directory / "a").read_bytes() == b"\1" * (1 << 22)


@pytest.mark.parametrize("memory, text", [
    (3, "no memory"), (None, "no memory"), ("text", "no memory"), (b"12345678", "writable"),
    (np.zeros(16)[::2], "contiguous"), (np.zeros((4, 4)).T, "contiguous"),
    (np.broadcast_to(np.zeros(1), 8), "contiguous"), (object(), "no memory"),
    (np.array([object()]), "Python objects"), (np.zeros(2, [("a", "f4"), ("b", "O")]), "Python objects"),
])
def test_memory_that_cannot_be_filled_is_refused(directory, memory, text):
    (directory / "a").write_bytes(bytes(4096))
    with penstock.Files() as files:
        with pytest.raises(penstock.InvalidArgument, match=text) as caught:
            files.begin_read(directory / "a", memory)
        assert caught.value.object == "into" and files.started == 0


@pytest.mark.parametrize("options", [
    {"threads": 0}, {"threads": 1 << 20}, {"depth": 1 << 20}, {"request_max": 5}, {"deadline_seconds": -1.0},
    {"deadline_seconds": float("nan")}, {"engine": "none"}, {"engine": ""}, {"threads": 1.0}, {"depth": "8"},
])
def test_options_out_of_their_range_are_refused(options):
    with pytest.raises(penstock.InvalidArgument) as caught:
        penstock.Files(**options)
    assert next(iter(options)) in str(caught.value)


@pytest.mark.parametrize("offset", [-1, 1 << 64])
def test_offsets_are_in_their_range(directory, offset):
    with penstock.Files() as files:
        with pytest.raises(penstock.InvalidArgument, match=f"offset, wanted 0 to .*, got {offset}"):
            files.begin_write(directory / "a", bytes(8), offset=offset)
        files.begin_write(directory / "a", bytes(8), offset=np.int64(8))
    assert (directory / "a").stat().st_size == 16


@pytest.mark.parametrize("path", ["", b"", "a\0b", 3])
def test_what_is_no_path_is_refused(path):
    with penstock.Files() as files:
        for call in (files.begin_read, files.begin_write):
            with pytest.raises(penstock.InvalidArgument, match="wanted .*path|zero byte") as caught:
                call(path, bytearray(8))
            assert caught.value.object in ("path", "file") and files.started == 0


def test_a_closed_object_refuses_everything(directory):
    files = penstock.Files()
    files.close()
    files.close()
    for call in (files.wait, lambda: files.begin_write(directory / "a", bytes(8)), lambda: files.notes,
                 lambda: files.started):
        with pytest.raises(penstock.FailedState, match="closed"):
            call()
    assert not (directory / "a").exists()


def test_threads_may_share_it(directory):
    files = penstock.Files(threads=2)
    failed = []

    def work(number):
        try:
            for turn in range(20):
                files.begin_write(directory / f"{number}-{turn}", bytes([number]) * 70_000)
                if turn % 3 == 0:
                    files.wait()
        except Exception as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files.close()
    assert not failed
    for number in range(4):
        for turn in range(20):
            assert (directory / f"{number}-{turn}").read_bytes() == bytes([number]) * 70_000


def test_closing_beside_a_call_of_another_thread(directory):
    for _ in range(30):
        files = penstock.Files()
        files.begin_write(directory / "a", bytes(1 << 20))
        thread = threading.Thread(target=files.close)
        thread.start()
        try:
            files.wait()
        except penstock.FailedState:
            pass
        thread.join()


def test_a_forked_process_refuses_it_and_ends(directory):
    files = penstock.Files()
    files.begin_write(directory / "a", np.ones(1 << 20, np.uint8))
    process = os.fork()
    if process == 0:
        status = 1
        try:
            files.wait()
        except penstock.FailedState as error:
            status = 0 if "forked" in str(error) else 2
        del files
        gc.collect()
        os._exit(status)
    assert os.waitpid(process, 0)[1] == 0
    assert files.wait() == 1
    assert (directory / "a").read_bytes() == b"\1" * (1 << 20)


@pytest.mark.parametrize("device, capsule", [
    ((1, 0), None), ((1, 0), 5), ((1, 0), "x"), ((2, 0), None), (None, None), ("cpu", None), ((2**40, 0), None),
    (("a", "b"), None),
])
def test_a_false_tensor_is_refused(directory, device, capsule):
    class Tensor:
        def __dlpack_device__(self):
            return device

        def __dlpack__(self, **_):
            return capsule

    with penstock.Files() as files, pytest.raises(penstock.InvalidArgument) as caught:
        files.begin_write(directory / "a", Tensor())
    assert caught.value.object == "source" and "Files.begin_write" in str(caught.value)


def test_another_exception_of_a_tensor_passes(directory):
    class Tensor:
        def __dlpack_device__(self):
            raise KeyboardInterrupt

        def __dlpack__(self):
            raise AssertionError

    with penstock.Files() as files, pytest.raises(KeyboardInterrupt):
        files.begin_write(directory / "a", Tensor())


def test_names_need_not_be_utf8(directory):
    name = os.fsencode(directory) + b"/none\xff"
    with penstock.Files() as files, pytest.raises(penstock.NotFound) as caught:
        files.begin_read(name, bytearray(8))
    assert os.fsencode(caught.value.object) == name


def test_an_exception_of_the_block_is_not_hidden(directory):
    (directory / "a").write_bytes(bytes(1 << 20))
    with pytest.raises(ZeroDivisionError):
        with penstock.Files() as files:
            files.begin_read(directory / "a", bytearray(1 << 20))
            os.truncate(directory / "a", 0)
            raise ZeroDivisionError


def test_a_transfer_that_fails_at_the_end_of_the_interpreter_is_named(directory):
    code = f"""
import os, penstock
open({str(directory / 'a')!r}, 'wb').write(bytes(64 << 20))
files = penstock.Files()
files.begin_read({str(directory / 'a')!r}, bytearray(64 << 20))
os.truncate({str(directory / 'a')!r}, 0)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0
    assert "ImportError" not in ended.stderr and "import" not in ended.stderr


def test_a_full_device_is_named():
    with penstock.Files() as files, pytest.raises(penstock.Error) as caught:
        files.begin_write("/dev/full", bytes(4096))
        files.wait()
    assert "/dev/full" in str(caught.value)
