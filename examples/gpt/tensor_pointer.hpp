#pragma once

#include <penstock/base/span.hpp>

#include <cstddef>
#include <cstdint>

namespace gpt {

// Tensors as pointers, for code that runs where their memory is.

template <class T>
T* pointer(penstock::DeviceSpan bytes) {
  return reinterpret_cast<T*>(static_cast<std::uintptr_t>(bytes.address()));
}
template <class T>
T* pointer(penstock::DeviceTensor tensor) {
  return pointer<T>(tensor.bytes);
}
/// The elements of an fp32 tensor.
inline float* floats(penstock::DeviceTensor tensor) {
  return pointer<float>(tensor);
}
inline std::size_t count(penstock::DeviceTensor tensor) {
  return tensor.count().value();
}

}  // namespace gpt
