#include "gpt/device_memory.hpp"

#include <cstdint>
#include <new>

namespace gpt {

penstock::Result<DeviceBuffer> HostAllocator::allocate(penstock::ByteCount size) {
  constexpr std::align_val_t alignment{256};
  void* bytes = ::operator new(size.value(), alignment, std::nothrow);
  if (bytes == nullptr) {
    return penstock::Error(penstock::ErrorCode::budget_too_small, "HostAllocator::allocate").wanted(size);
  }
  std::shared_ptr<void> owner(bytes, [](void* address) { ::operator delete(address, alignment); });
  const auto address = penstock::DeviceAddress(reinterpret_cast<std::uintptr_t>(bytes));
  return DeviceBuffer{.bytes = {address, size}, .owner = std::move(owner)};
}

}  // namespace gpt
