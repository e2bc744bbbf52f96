#!/usr/bin/env python3
"""Runs a bundle's programs without a network, in a root that holds what the GPU machine certainly has: glibc, libstdc++,
a shell, Python and cuBLAS.

    prove_bundle.py FOLDER [--accept-refusal]

Exits with 77 where this machine refuses unshare, mount or chroot, or with 0 if --accept-refusal is given.
"""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zlib

from bundle import SYSTEM_LIBRARIES, Bundle, find_cuda_library

CANNOT_PROVE = 77
TOOLS = pathlib.Path(__file__).resolve().parent
UNSHARE = ["unshare", "--net", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]


def copy(path, root):
    """Copies a file to the same path below `root`."""
    target = root / str(path).lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)
    target.chmod(0o755)


def libraries_of(program):
    """The paths of a program's libraries and of its dynamic linker."""
    output = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return re.findall(r"^\s*(?:\S+ => )?(/\S+) \(0x", output, re.M)


def copy_system(bundle, root):
    """Copies the shell, the commands that the run needs, Python's program, and the libraries of glibc and libstdc++."""
    programs = [pathlib.Path(sys.executable).resolve(), *(shutil.which(name) for name in ("sh", "env"))]
    for program in programs:
        copy(program, root)
        for library in libraries_of(program):
            copy(library, root)
    for library in libraries_of(zlib.__file__) if hasattr(zlib, "__file__") else []:
        copy(library, root)
    for name in [*bundle.tests, *bundle.tools]:
        for library in libraries_of(bundle.program(name)):
            if pathlib.Path(library).name in SYSTEM_LIBRARIES:
                copy(library, root)


def mounts(bundle, root):
    """(source, target) of each folder that the root sees without a copy."""
    standard_library = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    folders = [(path, path) for path in ("/proc", "/sys", "/dev", *standard_library)]
    folders += [(TOOLS, "/penstock/tools/gpu"), (bundle.folder, "/penstock/.gpu-bundle")]
    for folder in {find_cuda_library(name) for name in bundle.cuda_libraries} - {None}:
        folders.append((folder.resolve(), "/usr/local/cuda/lib64"))
    for source, target in folders:
        below = root / str(target).lstrip("/")
        below.mkdir(parents=True, exist_ok=True)
        yield source, below


def run_in_root(bundle, root):
    copy_system(bundle, root)
    (root / "tmp").mkdir()
    lines = [f"mount --rbind {shlex.quote(str(source))} {shlex.quote(str(target))}"
             for source, target in mounts(bundle, root)]
    python = pathlib.Path(sys.executable).resolve()
    lines.append(f"exec chroot {shlex.quote(str(root))} {shlex.quote(str(python))} -B /penstock/tools/gpu/run.py "
                 "--output /tmp/report check")
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR": "/tmp"}
    done = subprocess.run([*UNSHARE, "sh", "-ec", "\n".join(lines)], env=environment)
    log = root / "tmp/report/gpu.log"
    text = log.read_text() if log.exists() else ""
    print("\n".join(re.findall(r"^libraries from .*", text, re.M)) if done.returncode == 0 else text)
    return done.returncode


def main():
    if not 2 <= len(sys.argv) <= 3 or sys.argv[2:] not in ([], ["--accept-refusal"]):
        sys.exit(__doc__)
    bundle = Bundle(sys.argv[1])
    probe = subprocess.run([*UNSHARE, "sh", "-ec", "mount --bind /tmp /tmp; chroot / true"], capture_output=True,
                           text=True)
    if probe.returncode != 0:
        print(f"skipped: this machine refuses unshare, mount or chroot: {probe.stderr.strip()}\n"
              "  try     root, a machine that allows them, or --accept-refusal, which leaves it open whether the bundle "
              "is complete")
        return 0 if sys.argv[2:] else CANNOT_PROVE
    with tempfile.TemporaryDirectory(prefix="penstock-test-") as root:
        return run_in_root(bundle, pathlib.Path(root))


if __name__ == "__main__":
    sys.exit(main())
