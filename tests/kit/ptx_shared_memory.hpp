#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace penstock::test::ptx {

struct IllegalAccess : std::runtime_error {
  IllegalAccess() : std::runtime_error("PTX: an access outside of the kernel's memory") {}
};
struct MisalignedAccess : std::runtime_error {
  MisalignedAccess() : std::runtime_error("PTX: an access at an address that is no multiple of its size") {}
};

/// The shared memory of one block of threads after the other; its addresses begin at 0.
///
/// The order of two threads is defined only by a barrier between them. read() and write() throw std::runtime_error if
/// without one a thread reads what another has written or writes what another has read or written, and for a read of
/// what the block has not written, so that a missing barrier shows in any order of the threads. They throw
/// IllegalAccess outside of the memory.
class SharedMemory {
 public:
  explicit SharedMemory(std::size_t size) : bytes_(size), uses_(size) {}

  [[nodiscard]] const std::byte* read(std::uint64_t address, std::size_t size, std::uint32_t thread);
  [[nodiscard]] std::byte* write(std::uint64_t address, std::size_t size, std::uint32_t thread);
  /// Forgets what was written.
  void begin_block() { first_phase_ = ++phase_; }
  /// All threads have reached a barrier.
  void pass_barrier() { ++phase_; }

 private:
  /// The phases in which a byte was last written and read, and by which thread.
  struct Use {
    std::uint64_t written = 0, read = 0;
    std::uint32_t writer = 0, reader = 0;
  };
  void check(std::uint64_t address, std::size_t size) const;

  std::vector<std::byte> bytes_;
  std::vector<Use> uses_;
  std::uint64_t phase_ = 0, first_phase_ = 0;  ///< a phase ends at a barrier
};

}  // namespace penstock::test::ptx
