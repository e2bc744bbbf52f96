"""What the wheel has: the command line, types, and nothing that slows the import."""

import importlib.metadata
import pathlib
import subprocess
import sys

import penstock


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "penstock", *arguments], capture_output=True, text=True, check=False)


def test_the_command_line_is_the_same_program(directory):
    doctor = run("doctor", "--path", str(directory))
    assert "io_uring" in doctor.stdout, doctor.stderr
    estimate = run("estimate", "--help")
    assert estimate.returncode == 0 and "estimate" in estimate.stdout
    wrong = run("docktor")
    assert wrong.returncode != 0 and wrong.stderr


def test_versions_are_one():
    assert penstock.__version__ == importlib.metadata.version("penstock")


def test_it_is_typed():
    package = pathlib.Path(penstock.__file__).parent
    assert (package / "py.typed").exists()
    stubs = (package / "_core.pyi").read_text()
    for name in ("class Files", "class Runtime", "class Tile", "def begin_read", "def __buffer__", "-> dict[str, float]"):
        assert name in stubs


def test_the_import_takes_no_other_package():
    code = "import sys; before = set(sys.modules); import penstock; print(*(set(sys.modules) - before))"
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy"} & set(imported)
