"""Arrays of numpy, tensors of PyTorch and other buffers as bytes, and back. Neither package is imported here."""

from __future__ import annotations

import dataclasses
import sys

from ._core import HostMemory
from .errors import refuse

_large = 4 << 20  # bytes: worth whole pages


@dataclasses.dataclass(frozen=True)
class ArrayType:
    """What an array is, without its bytes. package: "torch", "numpy", or "" for other buffers."""

    package: str
    dtype: object
    shape: tuple[int, ...]
    nbytes: int

    def __str__(self) -> str:
        array = {"torch": "tensor", "numpy": "numpy.ndarray"}.get(self.package)
        return f"a {array} of {self.dtype}, shape {self.shape}" if array else f"{self.nbytes} bytes"

    def empty(self):
        """A new array of it, in host memory."""
        if self.package == "torch":
            torch = sys.modules["torch"]
            if self.nbytes < _large:
                return torch.empty(self.shape, dtype=self.dtype, device="cpu")
            flat = torch.frombuffer(HostMemory(self.nbytes), dtype=torch.uint8)
            return flat.view(self.dtype).reshape(self.shape)
        memory = HostMemory(self.nbytes) if self.nbytes >= _large else bytearray(self.nbytes)
        if self.package == "numpy":
            return sys.modules["numpy"].frombuffer(memory, self.dtype).reshape(self.shape)
        return memory


def array_type_of(values, function: str, name: str = "values") -> ArrayType:
    """Raises InvalidArgument, about the argument `name`, for what has no bytes."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(values, torch.Tensor):
        if values.layout != torch.strided or values.device.type == "meta" or values.is_quantized \
                or values.is_nested or hasattr(values, "to_local"):
            refuse(function, "it is no dense tensor with bytes of its own", name,
                   got=f"{type(values).__name__}, {values.dtype}, {values.layout}, on {values.device}",
                   advice="of a DTensor: its to_local()")
        if not _has_memory(values):
            refuse(function, "its memory was freed, or it never had any", name, wanted="a tensor with values",
                   got=f"{type(values).__name__}, {values.dtype}, shape {tuple(values.shape)}")
        return ArrayType("torch", values.dtype, tuple(values.shape), values.numel() * values.element_size())
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(values, (numpy.ndarray, numpy.generic)):
        if isinstance(values, numpy.ma.MaskedArray):
            refuse(function, "its mask would be lost", name, got="a masked array", advice="pass its data, and its mask")
        if values.dtype.hasobject:
            refuse(function, "its elements are Python objects", name, got=str(values.dtype),
                   advice="pass an array of numbers")
        if values.dtype.itemsize == 0:
            refuse(function, "its elements have no bytes", name, got=str(values.dtype))
        return ArrayType("numpy", values.dtype, values.shape, values.nbytes)
    try:
        return ArrayType("", None, (), memoryview(values).nbytes)
    except (TypeError, ValueError, BufferError) as error:
        refuse(function, "it is no memory", name, wanted="an array of numpy, a tensor, or another buffer",
               got=f"{type(values).__name__} ({error})")


def _has_memory(tensor) -> bool:
    """Not where its storage was resized, or of a FakeTensor."""
    if tensor.numel() == 0:
        return True
    storage = tensor.untyped_storage()
    last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return storage.nbytes() >= (last + 1) * tensor.element_size() and storage.device.type == tensor.device.type


def bytes_of(values, type: ArrayType, function: str, name: str = "values"):
    """Its bytes without a copy where it is contiguous: a tensor of uint8, which may be on a device, or a buffer. Raises
    InvalidArgument, about the argument `name`, for a buffer that is not contiguous."""
    if type.package == "torch":
        flat = values.detach().resolve_conj().resolve_neg().reshape(-1)
        if flat.numel() > 0 and flat.stride(0) != 1:
            flat = flat.clone(memory_format=sys.modules["torch"].contiguous_format)
        return flat.view(sys.modules["torch"].uint8)
    if type.package == "numpy":
        numpy = sys.modules["numpy"]
        return numpy.ascontiguousarray(values).reshape(-1).view(numpy.uint8)
    if not memoryview(values).c_contiguous:
        refuse(function, "it is not contiguous", name, got=f"strides {memoryview(values).strides}", advice="pass a copy")
    return values


def writable_bytes_of(into, type: ArrayType, function: str):
    """The bytes of an array that is filled. Raises InvalidArgument for one of another type, or not contiguous."""
    given = array_type_of(into, function, "into")
    if (given.package, given.dtype, given.shape, given.nbytes) != (type.package, type.dtype, type.shape, type.nbytes):
        refuse(function, "it is another type", "into", wanted=str(type), got=str(given))
    flat = bytes_of(into, type, function, "into")
    if type.package != "torch" and memoryview(flat).readonly:
        refuse(function, "it is read-only", "into", wanted="a writable buffer", got=into.__class__.__name__)
    is_itself = _address_of(flat, type) == _address_of(into, type) if type.nbytes > 0 else True
    is_contiguous = into.is_contiguous() if type.package == "torch" else \
        into.flags.c_contiguous if type.package == "numpy" else memoryview(into).c_contiguous
    if not is_contiguous or not is_itself:
        refuse(function, "it is not contiguous", "into", got=str(given), advice="fill a contiguous array and copy it")
    return flat


def note_written(into, type: ArrayType) -> None:
    """Counts a change of a tensor whose bytes were written: autograd and optimizers compare the counts."""
    if type.package == "torch" and not into.is_inference():
        sys.modules["torch"].autograd.graph.increment_version(into)


def _address_of(values, type: ArrayType):
    if type.package == "torch":
        return values.data_ptr()
    return values.__array_interface__["data"][0] if type.package == "numpy" else id(values)


def is_on_host(flat) -> bool:
    return getattr(getattr(flat, "device", None), "type", "cpu") == "cpu"
