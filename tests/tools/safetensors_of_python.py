"""Reads and writes safetensors with the package safetensors, for export_command_test.

  safetensors_of_python.py read DIRECTORY VALUES     writes the tensors of a model, as Hugging Face finds them, to the
                                                     file VALUES as fp32, by name, and prints what they are as JSON
  safetensors_of_python.py write DIRECTORY           writes models of the same values, in each type and in shards
"""
import json
import pathlib
import sys

import numpy
import safetensors
from safetensors.numpy import save_file

command, directory = sys.argv[1], pathlib.Path(sys.argv[2])


def floats(tensor):
    kinds = {"F32": numpy.float32, "F16": numpy.float16, "BF16": numpy.uint16}
    values = numpy.frombuffer(tensor["data"], kinds[tensor["dtype"]])
    if tensor["dtype"] == "BF16":
        values = (values.astype(numpy.uint32) << 16).view(numpy.float32)
    return values.astype(numpy.float32)


def read():
    index = directory / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"] if index.exists() else None
    tensors, sizes = {}, 0
    for file in sorted(set(weight_map.values())) if weight_map else ["model.safetensors"]:
        with safetensors.safe_open(directory / file, "np") as opened:
            assert opened.metadata() == {"format": "pt"}, opened.metadata()
        for name, tensor in safetensors.deserialize((directory / file).read_bytes()):
            assert weight_map is None or weight_map[name] == file, name
            tensors[name] = tensor
            sizes += len(tensor["data"])
    assert weight_map is None or set(weight_map) == set(tensors)
    assert weight_map is None or json.loads(index.read_text())["metadata"]["total_size"] == sizes
    with open(sys.argv[3], "wb") as values:
        for name in sorted(tensors):
            values.write(floats(tensors[name]).tobytes())
    print(json.dumps({name: {"dtype": tensor["dtype"], "shape": tensor["shape"]} for name, tensor in tensors.items()}))


def write():
    """Element i of first.weight is i + 1, of second.bias 8 i."""
    values = {"first.weight": numpy.arange(1, 7, dtype=numpy.float32).reshape(2, 3),
              "second.bias": 8 * numpy.arange(4, dtype=numpy.float32)}
    for dtype in ("float32", "float64", "float16"):
        save_file({name: value.astype(dtype) for name, value in values.items()}, directory / f"{dtype}.safetensors")
    for name, value in values.items():
        save_file({name: value}, directory / f"{name}.safetensors", {"format": "np"})
    index = {"metadata": {}, "weight_map": {name: f"{name}.safetensors" for name in values}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


read() if command == "read" else write()
