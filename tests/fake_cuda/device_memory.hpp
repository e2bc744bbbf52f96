#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

namespace penstock::test::fake_cuda {

/// The allocations of all devices. Their addresses are reserved and inaccessible, so that host code that uses one
/// crashes; the bytes are elsewhere. Addresses are not reused, and unused ones separate neighbours.
class DeviceMemory {
 public:
  struct Block {
    int device;
    std::uintptr_t address;
    std::size_t size;
    std::unique_ptr<std::byte[]> bytes;
  };
  using Blocks = std::vector<std::shared_ptr<const Block>>;

  DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// Of what a device has allocated, in the granularity of its addresses.
  [[nodiscard]] std::size_t used(int device) const;
  [[nodiscard]] static std::size_t rounded(std::size_t size);
  [[nodiscard]] std::shared_ptr<const Block> allocate(int device, std::size_t size);
  /// The allocation that begins there; null if none does.
  [[nodiscard]] std::shared_ptr<const Block> starting_at(const void* address) const;
  void release(const Block& block) { blocks_.erase(block.address); }
  void clear() { blocks_.clear(); }
  [[nodiscard]] std::size_t count() const { return blocks_.size(); }

  /// The allocation that contains all `size` bytes; null if none does.
  [[nodiscard]] std::shared_ptr<const Block> containing(const void* address, std::size_t size) const;
  /// Whether it is an address of a device, allocated or not.
  [[nodiscard]] bool reserves(const void* address) const;
  /// In the order of their addresses.
  [[nodiscard]] Blocks of(const std::set<int>& devices) const;

 private:
  std::uintptr_t begin_ = 0, next_ = 0, end_ = 0;
  std::map<std::uintptr_t, std::shared_ptr<const Block>> blocks_;
};

/// Ranges of host memory that are registered (cudaHostRegister).
class HostRegistrations {
 public:
  /// Measured on an H100 with driver 580: a copy is judged by the registration in which its first byte lies.
  enum class Kind : std::uint8_t {
    pageable,    ///< it begins outside of all, wherever it ends
    registered,  ///< one registration holds all of it
    leaves,      ///< it begins in a registration and ends outside
  };

  /// False if a part of the range is registered already.
  [[nodiscard]] bool add(const void* address, std::size_t size);
  /// False if no registration begins there.
  [[nodiscard]] bool remove(const void* address);
  [[nodiscard]] Kind kind(const void* address, std::size_t size) const;
  [[nodiscard]] std::size_t count() const { return sizes_.size(); }
  void clear() { sizes_.clear(); }

 private:
  std::map<std::uintptr_t, std::size_t> sizes_;
};

}  // namespace penstock::test::fake_cuda
