"""DeepSpeed's engine with penstock.deepspeed.install() on a file system with faults.

PENSTOCK_FAULTY_FILE_SYSTEM names the program of tests/fault; scripts/test-python sets it where it is built."""

import contextlib
import os
import signal
import subprocess
import time

import pytest

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

from with_deepspeed.test_install import losses_of, train  # noqa: E402

program = os.environ.get("PENSTOCK_FAULTY_FILE_SYSTEM", "")
pytestmark = pytest.mark.skipif(not os.path.exists(program), reason="PENSTOCK_FAULTY_FILE_SYSTEM names no program")


@contextlib.contextmanager
def faulty(directory, kind, operation, number, count, mib=256):
    mounted = directory / "mounted"
    mounted.mkdir()
    serves = subprocess.Popen([program, mounted, kind, operation, str(number), str(count), "1", str(mib)],
                              stdout=subprocess.PIPE, text=True)
    try:
        if serves.stdout.readline() != "ready\n":
            pytest.skip("FUSE is refused")
        yield mounted
    finally:
        serves.send_signal(signal.SIGTERM)
        serves.wait(timeout=60)
        assert int(serves.stdout.read().split()[-1]) > 0  # injected
        while os.path.ismount(mounted):
            time.sleep(0.1)


@pytest.mark.parametrize("kind, operation, number, error", [
    ("eio", "write", 3, "IoFailed"), ("eio", "write", 20, "IoFailed"), ("eio", "read", 2, "IoFailed"),
    ("eio", "read", 20, "IoFailed"), ("enospc", "write", 5, "NoSpace"), ("eio", "create", 2, "IoFailed"),
    ("flip", "read", 20, "Corrupted"), ("lose", "write", 20, "Corrupted")])
def test_a_fault_ends_in_an_error_that_names_file_and_offset(directory, kind, operation, number, error):
    with faulty(directory, kind, operation, number, 1000) as mounted:
        done = train("nvme", mounted)
    assert done.returncode != 0
    message = done.stderr[done.stderr.rfind("penstock.errors."):]
    assert message.startswith(f"penstock.errors.{error}"), done.stderr
    assert f"{mounted}/" in message and ".swp" in message
    assert operation == "create" or "offset" in message, message


@pytest.mark.parametrize("kind, operation", [("shorten", "write"), ("shorten", "read"), ("delay", "write"), ("hang", "read")])
def test_what_the_drive_does_in_parts_or_late_changes_no_loss(directory, kind, operation):
    (directory / "whole").mkdir()
    expected = losses_of(train("nvme", directory / "whole"))
    with faulty(directory, kind, operation, 3, 2 if kind == "hang" else 10) as mounted:
        assert losses_of(train("nvme", mounted)) == expected
