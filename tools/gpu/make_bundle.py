#!/usr/bin/env python3
"""Copies what the GPU machine needs from a build to one folder: make_bundle.py BUILD FOLDER"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import zlib

from bundle import PACKED, SYSTEM_LIBRARIES, checksum, is_cuda_library

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIZE_MAX = 52 << 20  # 64 MiB can be carried, the working tree of 11 included
PACKED_FROM = 1 << 20
XXHASH = pathlib.Path("/usr/include/xxhash.h")  # with which the Python module is compiled; GPU machines may lack it
LOADED = "libopenblas.so.0"  # by programs when they need it, so that ldd does not list it
TOOLS = ["tools/penstock", "examples/gpt/gpt_train", "examples/gpt/gpt_plain", "bench/nvme_swap",
         "bench/cuda_bandwidth"]


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: {command[0]} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def test_programs(build):
    """The programs of the tests with CTest's label gpu."""
    tests = json.loads(run("ctest", "--test-dir", build, "--show-only=json-v1"))["tests"]
    unbuilt = [test["name"] for test in tests if test["name"].endswith("_NOT_BUILT")]
    if unbuilt:
        sys.exit(f"error: {build} is not built completely: {unbuilt[0]}\n  try     cmake --build {build}")
    programs = {test["command"][0] for test in tests
                for one in test["properties"] if one["name"] == "LABELS" and "gpu" in one["value"]}
    if not programs:
        sys.exit(f"error: no test in {build} has the label gpu\n  try     a build with CUDA: -DPENSTOCK_CUDA=ON")
    return [pathlib.Path(program) for program in sorted(programs)]


def libraries_of(program):
    """Yields the name and the path of each shared library that the bundle must hold, or None as the path of CUDA's."""
    for name, path in re.findall(r"^\s*(\S+) => (.+?)(?: \(0x[0-9a-f]+\))?$", run("ldd", program), re.M):
        if is_cuda_library(name):
            yield name, None
        elif path == "not found":
            sys.exit(f"error: {program} needs {name}, which is not found")
        elif name not in SYSTEM_LIBRARIES:
            yield name, path


def path_of_loaded():
    if path := re.search(rf"^\s*{re.escape(LOADED)} \(.*x86-64.*\) => (.+)$", run("ldconfig", "-p"), re.M):
        return path[1]
    sys.exit(f"error: {LOADED}, which the example's programs load, is not found\n  try     apt install libopenblas0")


def empty_folder(folder):
    if folder.exists() and any(folder.iterdir()) and not (folder / "manifest.json").exists():
        sys.exit(f"error: {folder} holds something that is no bundle\n  try     remove it, or name another folder")
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("bin", "lib", "data", "include"):
        (folder / name).mkdir(parents=True)


def pack(file):
    """Compresses a file that is large."""
    if file.stat().st_size < PACKED_FROM:
        return
    file.with_name(file.name + PACKED).write_bytes(zlib.compress(file.read_bytes()))
    file.unlink()


def make(build, folder):
    tests, tools = test_programs(build), [build / tool for tool in TOOLS]
    empty_folder(folder)
    found = {}
    for program in [*tests, *tools]:
        stripped = folder / "bin" / program.name
        run("strip", "-o", stripped, program)
        pack(stripped)
        found.update(libraries_of(program))
    loaded = path_of_loaded()
    found |= {LOADED: loaded, **dict(libraries_of(loaded))}
    libraries = {name: path for name, path in sorted(found.items()) if path}
    for name, path in libraries.items():
        shutil.copyfile(path, folder / "lib" / name)
        pack(folder / "lib" / name)
    shutil.copyfile(ROOT / "examples/gpt/ds_config.json", folder / "data/ds_config.json")
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    (folder / "data/text.txt").write_text("".join(document.read_text() for document in documents))
    shutil.copy(XXHASH, folder / "include")
    describe = ["git", "-C", ROOT, "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, capture_output=True, text=True).stdout
    (folder / "manifest.json").write_text(json.dumps({
        "commit": commit.strip() or "unknown",
        "tests": [program.name for program in tests],
        "tools": [program.name for program in tools],
        "libraries": libraries,
        "cuda_libraries": sorted(name for name, path in found.items() if not path),
        "checksums": {str(file.relative_to(folder)): checksum(file)
                      for file in sorted(folder.rglob("*")) if file.is_file()},
    }, indent=1) + "\n")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    build, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    make(build, folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    programs = sorted(path.name.removesuffix(PACKED) for path in (folder / "bin").iterdir())
    print(f"{folder} holds {size / 2**20:.1f} MiB: {' '.join(programs)}, "
          f"and {len(list((folder / 'lib').iterdir()))} libraries")
    if size > SIZE_MAX:
        sys.exit(f"error: {folder} holds {size / 2**20:.1f} MiB, and at most {SIZE_MAX >> 20} MiB can be carried")


if __name__ == "__main__":
    main()
