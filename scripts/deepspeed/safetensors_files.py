"""Safetensors files that are read and written in pieces."""
import contextlib
import json
import math
import os
import pathlib
import shutil

import numpy
import torch


class Refused(Exception):
    """What the user has to change."""


def read_json(path):
    try:
        return json.loads(pathlib.Path(path).read_text())
    except ValueError as error:
        raise Refused(f"{path}: it is no JSON: {error}") from error


def read_names(path):
    """The file of --rename: the trainer's name of a parameter by DeepSpeed's."""
    names = read_json(path) if path else {}
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise Refused(f"{path}: wanted an object of names")
    return names


@contextlib.contextmanager
def new_directory(path):
    """A directory with a temporary name, which becomes `path` unless there is an error."""
    if path.exists():
        raise Refused(f"{path}: it exists; name another directory")
    partial = path.with_name(path.name + ".partial")
    partial.mkdir(parents=True)
    try:
        yield partial
        os.rename(partial, path)
    except BaseException:
        shutil.rmtree(partial)
        raise


NUMPY_TYPES = {"F32": numpy.float32, "F64": numpy.float64, "F16": numpy.float16, "I64": numpy.int64,
               "I32": numpy.int32, "U8": numpy.uint8, "BOOL": numpy.bool_, "BF16": numpy.uint16}
TORCH_NAMES = {torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.bfloat16: "BF16",
               torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL"}


class SafetensorsWriter:
    """Writes the tensors of a file in the order in which they were planned, in pieces of any length."""

    def __init__(self, path, tensors, metadata):  # tensors: name, dtype and shape of each
        header, begin = {"__metadata__": metadata}, 0
        for name, dtype, shape in tensors:
            end = begin + math.prod(shape) * numpy.dtype(NUMPY_TYPES[dtype]).itemsize
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
            begin = end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self.path, self.left, self.file = path, begin, open(path, "xb")
        self.file.write(len(text).to_bytes(8, "little") + text)

    def write(self, array):
        self.left -= array.nbytes
        self.file.write(memoryview(numpy.ascontiguousarray(array)).cast("B"))

    def close(self):
        if self.left != 0:
            raise Refused(f"{self.path}: {self.left} bytes of its tensors were not written")
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()


class SafetensorsReader:
    """The tensors of a file, of the files of an index, or of a directory with states.safetensors or its index."""

    def __init__(self, path):
        path = pathlib.Path(path)
        if path.is_dir():
            index = path / "states.safetensors.index.json"
            path = index if index.exists() else path / "states.safetensors"
        if not path.exists():
            raise Refused(f"{path}: not found; name what penstock export --states wrote")
        files = [path]
        if path.suffix == ".json":
            files = [path.parent / name for name in sorted(set(read_json(path)["weight_map"].values()))]
        self.places, self.metadata = {}, {}
        for file in files:
            with open(file, "rb") as opened:
                length = int.from_bytes(opened.read(8), "little")
                if not 0 < length <= 100_000_000:
                    raise Refused(f"{file}: it is no safetensors file")
                header = json.loads(opened.read(length))
            self.metadata.update(header.pop("__metadata__", {}))
            for name, entry in header.items():
                self.places[name] = (file, 8 + length + entry["data_offsets"][0], entry["dtype"], entry["shape"])

    def shape(self, name):
        return self.places[name][3]

    def tensor(self, name):
        if name not in self.places:
            raise Refused(f"tensor {name} is missing")
        file, offset, dtype, shape = self.places[name]
        if dtype not in NUMPY_TYPES:
            raise Refused(f"{file}: tensor {name} has the dtype {dtype}; wanted one of {', '.join(NUMPY_TYPES)}")
        array = numpy.memmap(file, NUMPY_TYPES[dtype], "c", offset, (math.prod(shape),))
        tensor = torch.from_numpy(array)
        return (tensor.view(torch.bfloat16) if dtype == "BF16" else tensor).view(shape)
