"""The folder that make_bundle.py makes: programs, their shared libraries, and what they read.

    bin/             test programs and tools, stripped
    lib/             their shared libraries, without those of glibc, libstdc++ and CUDA
                     large files of both are compressed (NAME.z)
    data/            a configuration and a text for the example
    include/         a header with which the Python module is compiled
    manifest.json    the commit, the names of all of these, and their checksums
"""
import glob
import hashlib
import json
import os
import pathlib
import site
import sys
import tempfile
import zlib

PACKED = ".z"

# Every machine with a C++ program has these; they must not be mixed with those of another machine.
SYSTEM_LIBRARIES = {
    "linux-vdso.so.1", "ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1",
    "libstdc++.so.6", "libgcc_s.so.1",
}

# The toolkit, then PyPI's packages (nvidia-cublas).
CUDA_FOLDERS = ["/usr/local/cuda/lib64", "/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/*/lib",
                "/usr/local/cuda*/lib"]

# Programs load it where it is needed. It is too large to be carried.
NCCL = "libnccl.so.2"


def is_cuda_library(name):
    return name.startswith(("libcuda", "libcublas", "libnv"))


def site_packages():
    return [pathlib.Path(one) for one in [*sys.path, *site.getsitepackages()] if one]


def find_cuda_library(name, folders=None, packages=None):
    """Returns the folder that holds the library `name`, or None."""
    for pattern in CUDA_FOLDERS if folders is None else folders:
        for folder in sorted(glob.glob(str(pattern)), reverse=True):
            if (pathlib.Path(folder) / name).exists():
                return pathlib.Path(folder)
    for package in site_packages() if packages is None else packages:
        for path in sorted(package.glob(f"nvidia/*/lib/{name}")):
            return path.parent
    return None


def has_nccl():
    return bool(find_cuda_library(NCCL) or glob.glob(f"/usr/lib*/{NCCL}") or glob.glob(f"/usr/lib/*/{NCCL}"))


def checksum(file):
    """Of its contents, or None if it cannot be read."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None


class Bundle:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder).resolve()
        try:
            manifest = json.loads((self.folder / "manifest.json").read_text())
            self.commit = manifest["commit"]
            self.tests = manifest["tests"]
            self.tools = manifest["tools"]
            self.libraries = manifest["libraries"]
            self.cuda_libraries = manifest["cuda_libraries"]
            checksums = manifest["checksums"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            what = f"its manifest lacks {error}" if isinstance(error, KeyError) else error
            sys.exit(f"error: {folder} is no bundle: {what}\n  try     scripts/gpu --bundle, which makes one")
        if different := [name for name, found in checksums.items() if checksum(self.folder / name) != found]:
            sys.exit(f"error: {len(different)} files of {folder} are missing or not those of its manifest: {different[0]}\n"
                     "  try     make it again with scripts/gpu --bundle, and copy all of it")
        self.unpacked = None

    def program(self, name):
        file = self.folder / "bin" / name
        return file if file.exists() else pathlib.Path(self.unpack()) / name

    def data(self, name):
        return self.folder / "data" / name

    def unpack(self):
        """The folder with what is compressed in the bundle. It exists as long as this object."""
        if self.unpacked is None:
            self.unpacked = tempfile.TemporaryDirectory(prefix="penstock-bundle-")
            for packed in self.folder.glob(f"*/*{PACKED}"):
                file = pathlib.Path(self.unpacked.name) / packed.name.removesuffix(PACKED)
                file.write_bytes(zlib.decompress(packed.read_bytes()))
                file.chmod(0o755)
        return self.unpacked.name

    def environment(self):
        """Of the bundle's programs: their libraries are found before all others."""
        folders = [self.unpack(), str(self.folder / "lib")]
        folders += {str(folder) for folder in map(find_cuda_library, [*self.cuda_libraries, NCCL]) if folder}
        folders += [one for one in [os.environ.get("LD_LIBRARY_PATH")] if one]
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(folders)}
