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
/// The order of two threads is defined only by a barrier between them, of the block or of the warp that both are in.
/// read() and write() throw std::runtime_error if without one a thread reads what another has written or writes what
/// another has read or written, and for a read of what the block has not written, so that a missing barrier shows in
/// any order of the threads. They throw IllegalAccess outside of the memory.
class SharedMemory {
 public:
  explicit SharedMemory(std::size_t size) : bytes_(size), uses_(size) {}

  [[nodiscard]] const std::byte* read(std::uint64_t address, std::size_t size, std::uint32_t thread);
  [[nodiscard]] std::byte* write(std::uint64_t address, std::size_t size, std::uint32_t thread);
  /// Forgets what was written.
  void begin_block() { first_phase_ = ++phase_; }
  /// All threads have reached a barrier.
  void pass_barrier() { ++phase_; }
  /// Those of the thread's warp have.
  void pass_warp_barrier(std::uint32_t thread) { ++warp_phase(thread / warp_size); }

 private:
  static constexpr std::uint32_t warp_size = 32, several = ~std::uint32_t{};
  /// A byte's last access of one kind: in which phases of the block and of the warp, and by which thread and warp, or
  /// by several in the same phases.
  struct Use {
    std::uint64_t phase = 0, warp_phase = 0;
    std::uint32_t thread = 0, warp = 0;
  };
  struct Uses {
    Use written, read;
  };
  void check(std::uint64_t address, std::size_t size) const;
  std::uint64_t& warp_phase(std::uint32_t warp);
  /// Whether a thread's access comes after `use` whatever the order in which threads run.
  [[nodiscard]] bool is_after(const Use& use, std::uint32_t thread);
  [[nodiscard]] Use use_by(std::uint32_t thread);

  std::vector<std::byte> bytes_;
  std::vector<Uses> uses_;
  std::uint64_t phase_ = 0, first_phase_ = 0;  ///< a phase ends at a barrier
  std::vector<std::uint64_t> warp_phases_;
};

}  // namespace penstock::test::ptx
