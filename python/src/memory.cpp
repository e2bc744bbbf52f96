#include "memory.hpp"

#include <nanobind/stl/string.h>
#include <string>
#include <string_view>

namespace penstock::python {

namespace {

std::string type_of(nb::handle object) {
  return nb::cast<std::string>(nb::str(object.type().attr("__name__")));
}

[[noreturn]] void refuse_object(nb::handle object, const char* function, const char* argument,
                                const std::string& reason, const std::string& advice) {
  refuse({.function = function,
          .argument = argument,
          .reason = reason,
          .wanted = "contiguous host memory: a numpy array, a tensor on the CPU, or another buffer",
          .got = type_of(object),
          .advice = advice});
}

/// The text of the exception that is set, which it clears.
std::string take_python_error() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  const nb::object own_type = nb::steal(type), own_value = nb::steal(value), own_trace = nb::steal(trace);
  return nb::cast<std::string>(nb::str(own_value));
}

std::optional<penstock_dtype> dtype_of(std::string_view format, Py_ssize_t item) {
  if (!format.empty() && (format.front() == '<' || format.front() == '=' || format.front() == '@'))
    format.remove_prefix(1);
  if (format == "f" && item == 4) return PENSTOCK_FP32;
  if (format == "e" && item == 2) return PENSTOCK_FP16;
  if (format == "H" && item == 2) return PENSTOCK_BF16;
  return std::nullopt;
}

std::optional<penstock_dtype> dtype_of(nb::dlpack::dtype type) {
  if (type.lanes != 1) return std::nullopt;
  const bool is_float = type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float),
             is_bfloat = type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat),
             is_unsigned = type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::UInt);
  if (is_float && type.bits == 32) return PENSTOCK_FP32;
  if (is_float && type.bits == 16) return PENSTOCK_FP16;
  if ((is_bfloat || is_unsigned) && type.bits == 16) return PENSTOCK_BF16;
  return std::nullopt;
}

}  // namespace

Memory Memory::of(nb::handle object, Use use, const char* function, const char* argument) {
  if (PyObject_CheckBuffer(object.ptr()) != 0) return of_buffer(object, use, function, argument);
  if (nb::hasattr(object, "__dlpack__")) return of_dlpack(object, function, argument);
  refuse_object(object, function, argument, "it is no memory", "");
}

Memory Memory::of_buffer(nb::handle object, Use use, const char* function, const char* argument) {
  Memory memory;
  auto view = std::make_unique<Py_buffer>();
  const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (use == Use::write ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(object.ptr(), view.get(), flags) != 0) {
    refuse_object(
        object, function, argument, take_python_error(),
        use == Use::write ? "pass memory that is contiguous and may be written" : "pass a contiguous copy");
  }
  memory.view_.reset(view.release());
  if (memory.view_->format != nullptr &&
      std::string_view(memory.view_->format).find('O') != std::string_view::npos)
    refuse_object(object, function, argument, "its elements are Python objects", "pass an array of numbers");
  memory.data_ = static_cast<std::byte*>(memory.view_->buf);
  memory.bytes_ = static_cast<std::uint64_t>(memory.view_->len);
  memory.type_name_ = memory.view_->format == nullptr ? "B" : memory.view_->format;
  memory.dtype_ = dtype_of(memory.type_name_, memory.view_->itemsize);
  return memory;
}

Memory Memory::of_dlpack(nb::handle object, const char* function, const char* argument) {
  nb::object capsule;
  try {
    const nb::object device = object.attr("__dlpack_device__")();
    const nb::object number = device[0];
    const long type = PyLong_Check(number.ptr()) ? PyLong_AsLong(number.ptr()) : -1;
    PyErr_Clear();  // of a number that is too large
    if (type < 0) refuse_object(object, function, argument, "it does not say on which device it is", "");
    if (type != nb::device::cpu::value && type != nb::device::cuda_host::value) {
      refuse_object(object, function, argument, "it is on another device", "copy it to host memory: x.cpu()");
    }
    capsule = object.attr("__dlpack__")();
  } catch (nb::python_error& error) {
    const bool is_of_tensor = error.matches(PyExc_BufferError) || error.matches(PyExc_RuntimeError) ||
                              error.matches(PyExc_TypeError) || error.matches(PyExc_ValueError);
    if (!is_of_tensor || nb::hasattr(error.value(), "advice")) throw;
    refuse_object(object, function, argument, nb::cast<std::string>(nb::str(error.value())),
                  "pass a dense tensor without a gradient history: x.detach()");
  }
  Memory memory;
  if (!nb::try_cast<nb::ndarray<>>(capsule, memory.array_) || memory.array_.dtype().lanes != 1)
    refuse_object(object, function, argument, "its DLPack capsule cannot be used", "");
  std::int64_t expected = 1;
  for (std::size_t i = memory.array_.ndim(); i-- > 0;) {
    const auto extent = static_cast<std::int64_t>(memory.array_.shape(i));
    if (extent > 1 && memory.array_.stride(i) != expected)
      refuse_object(object, function, argument, "its elements are not contiguous",
                    "pass x.contiguous(), or a view that is contiguous");
    expected *= extent;
  }
  memory.data_ = static_cast<std::byte*>(memory.array_.data());
  memory.bytes_ = memory.array_.nbytes();
  if (memory.data_ == nullptr && memory.bytes_ > 0)
    refuse_object(object, function, argument, "it has no memory: it was freed, or never was there", "");
  const auto type = memory.array_.dtype();
  memory.dtype_ = dtype_of(type);
  memory.type_name_ =
      "DLPack type " + std::to_string(type.code) + " of " + std::to_string(type.bits) + " bits";
  return memory;
}

Elements Elements::of(nb::handle object, Use use, const char* function, const char* argument) {
  Memory memory = Memory::of(object, use, function, argument);
  if (!memory.dtype()) {
    refuse({.function = function,
            .argument = argument,
            .reason = "its elements have another type",
            .wanted = "float32, float16, or bfloat16 (in numpy: uint16)",
            .got = memory.type_name(),
            .advice = ""});
  }
  const penstock_dtype dtype = *memory.dtype();
  const std::uint64_t count = memory.bytes() / (dtype == PENSTOCK_FP32 ? 4 : 2);
  return {std::move(memory), dtype, count};
}

}  // namespace penstock::python
