#include "kit/ptx_shared_memory.hpp"

namespace penstock::test::ptx {

void SharedMemory::check(std::uint64_t address, std::size_t size) const {
  if (address > bytes_.size() || size > bytes_.size() - address) throw IllegalAccess();
}

std::uint64_t& SharedMemory::warp_phase(std::uint32_t warp) {
  if (warp >= warp_phases_.size()) warp_phases_.resize(warp + 1);
  return warp_phases_[warp];
}

bool SharedMemory::is_after(const Use& use, std::uint32_t thread) {
  const std::uint32_t warp = thread / warp_size;
  return use.phase != phase_ || use.thread == thread ||
         (use.warp == warp && use.warp_phase < warp_phase(warp));
}

SharedMemory::Use SharedMemory::use_by(std::uint32_t thread) {
  const std::uint32_t warp = thread / warp_size;
  return {.phase = phase_, .warp_phase = warp_phase(warp), .thread = thread, .warp = warp};
}

const std::byte* SharedMemory::read(std::uint64_t address, std::size_t size, std::uint32_t thread) {
  check(address, size);
  const Use now = use_by(thread);
  for (std::size_t i = address; i < address + size; ++i) {
    auto& [written, read] = uses_[i];
    if (written.phase < first_phase_)
      throw std::runtime_error("PTX: a read of shared memory that was never written");
    if (!is_after(written, thread)) {
      throw std::runtime_error(
          "PTX: no barrier between a thread's write of shared memory and another's read");
    }
    const std::uint32_t reader = is_after(read, thread) ? thread : several;
    const std::uint32_t readers = reader == thread || read.warp == now.warp ? now.warp : several;
    read = now;
    read.thread = reader, read.warp = readers;
  }
  return &bytes_[address];
}

std::byte* SharedMemory::write(std::uint64_t address, std::size_t size, std::uint32_t thread) {
  check(address, size);
  for (std::size_t i = address; i < address + size; ++i) {
    auto& [written, read] = uses_[i];
    if (!is_after(written, thread) || !is_after(read, thread)) {
      throw std::runtime_error("PTX: no barrier between a thread's use of shared memory and another's write");
    }
    written = use_by(thread);
  }
  return &bytes_[address];
}

}  // namespace penstock::test::ptx
