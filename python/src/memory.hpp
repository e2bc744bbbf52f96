#pragma once

#include "errors.hpp"

#include <nanobind/ndarray.h>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace penstock::python {

/// Whether the library reads the memory or writes to it.
enum class Use { read, write };

/// The contiguous host memory of an object that has Python's buffer protocol (numpy, bytes, memoryview, a lease) or
/// DLPack (a tensor of PyTorch). Keeps the object from freeing or resizing it. Made and destroyed with the GIL.
class Memory {
 public:
  /// Throws InvalidArgument for another object, memory that is not contiguous, and memory of a device; and for memory
  /// that must not be written, if it is for that.
  static Memory of(nb::handle object, Use use, const char* function, const char* argument);

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  /// Of its elements. uint16 is taken as bf16, which numpy has not. None: the library has no such type.
  [[nodiscard]] std::optional<penstock_dtype> dtype() const { return dtype_; }
  /// "float32", for messages.
  [[nodiscard]] const std::string& type_name() const { return type_name_; }

 private:
  struct Release {
    void operator()(Py_buffer* view) const {
      PyBuffer_Release(view);
      delete view;
    }
  };
  static Memory of_buffer(nb::handle object, Use use, const char* function, const char* argument);
  static Memory of_dlpack(nb::handle object, const char* function, const char* argument);

  std::unique_ptr<Py_buffer, Release> view_;
  nb::ndarray<> array_;
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::optional<penstock_dtype> dtype_;
  std::string type_name_;
};

/// The memory of elements of the library's types. Throws InvalidArgument for others.
struct Elements {
  Memory memory;
  penstock_dtype dtype;
  std::uint64_t count;

  static Elements of(nb::handle object, Use use, const char* function, const char* argument);
};

}  // namespace penstock::python
