#include "fake_cuda/device_memory.hpp"

#include <sys/mman.h>
#include <cstring>
#include <stdexcept>

namespace penstock::test::fake_cuda {

namespace {

constexpr std::size_t reserved_bytes = std::size_t{1} << 40, granularity = 512, gap = 65536;
constexpr int fresh = 0x7f;  // cudaMalloc clears nothing; as a bf16, a float or a double a huge number

std::uintptr_t number(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

}  // namespace

DeviceMemory::DeviceMemory() {
  void* const reserved =
      mmap(nullptr, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) throw std::runtime_error("fake CUDA: no address space for device memory");
  begin_ = next_ = number(reserved);
  end_ = begin_ + reserved_bytes;
}

std::size_t DeviceMemory::rounded(std::size_t size) {
  return (size + granularity - 1) / granularity * granularity;
}

std::size_t DeviceMemory::used(int device) const {
  std::size_t sum = 0;
  for (const auto& [address, block] : blocks_) sum += block->device == device ? rounded(block->size) : 0;
  return sum;
}

std::shared_ptr<const DeviceMemory::Block> DeviceMemory::allocate(int device, std::size_t size) {
  if (rounded(size) + gap > end_ - next_) {
    throw std::runtime_error("fake CUDA: the addresses of device memory are used up");
  }
  std::unique_ptr<std::byte[]> bytes(new std::byte[size]);
  std::memset(bytes.get(), fresh, size);
  auto block = std::make_shared<const Block>(Block{device, next_, size, std::move(bytes)});
  next_ += rounded(size) + gap;
  blocks_.emplace(block->address, block);
  return block;
}

std::shared_ptr<const DeviceMemory::Block> DeviceMemory::starting_at(const void* address) const {
  const auto found = blocks_.find(number(address));
  return found == blocks_.end() ? nullptr : found->second;
}

std::shared_ptr<const DeviceMemory::Block> DeviceMemory::containing(const void* address,
                                                                    std::size_t size) const {
  auto after = blocks_.upper_bound(number(address));
  if (after == blocks_.begin()) return nullptr;
  const auto& block = std::prev(after)->second;
  const std::size_t offset = number(address) - block->address;
  return offset <= block->size && size <= block->size - offset ? block : nullptr;
}

bool DeviceMemory::reserves(const void* address) const {
  return number(address) >= begin_ && number(address) < end_;
}

DeviceMemory::Blocks DeviceMemory::of(const std::set<int>& devices) const {
  Blocks found;
  for (const auto& [address, block] : blocks_) {
    if (devices.contains(block->device)) found.push_back(block);
  }
  return found;
}

bool HostRegistrations::add(const void* address, std::size_t size) {
  const auto after = sizes_.upper_bound(number(address) + size - 1);
  if (after != sizes_.begin()) {
    const auto [start, length] = *std::prev(after);
    if (start + length > number(address)) return false;
  }
  sizes_.emplace(number(address), size);
  return true;
}

bool HostRegistrations::remove(const void* address) {
  return sizes_.erase(number(address)) > 0;
}

HostRegistrations::Kind HostRegistrations::kind(const void* address, std::size_t size) const {
  const std::uintptr_t first = number(address);
  const auto after = sizes_.upper_bound(first);
  if (after == sizes_.begin()) return Kind::pageable;
  const auto [start, length] = *std::prev(after);
  if (start + length <= first) return Kind::pageable;
  return size <= start + length - first ? Kind::registered : Kind::leaves;
}

}  // namespace penstock::test::fake_cuda
