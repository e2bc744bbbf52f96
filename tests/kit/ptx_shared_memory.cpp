#include "kit/ptx_shared_memory.hpp"

namespace penstock::test::ptx {

namespace {
constexpr std::uint32_t several = ~std::uint32_t{};  // threads
}

void SharedMemory::check(std::uint64_t address, std::size_t size) const {
  if (address > bytes_.size() || size > bytes_.size() - address) throw IllegalAccess();
}

const std::byte* SharedMemory::read(std::uint64_t address, std::size_t size, std::uint32_t thread) {
  check(address, size);
  for (std::size_t i = address; i < address + size; ++i) {
    Use& use = uses_[i];
    if (use.written < first_phase_)
      throw std::runtime_error("PTX: a read of shared memory that was never written");
    if (use.written == phase_ && use.writer != thread) {
      throw std::runtime_error(
          "PTX: no barrier between a thread's write of shared memory and another's read");
    }
    use.reader = use.read != phase_ || use.reader == thread ? thread : several;
    use.read = phase_;
  }
  return &bytes_[address];
}

std::byte* SharedMemory::write(std::uint64_t address, std::size_t size, std::uint32_t thread) {
  check(address, size);
  for (std::size_t i = address; i < address + size; ++i) {
    Use& use = uses_[i];
    if ((use.written == phase_ && use.writer != thread) || (use.read == phase_ && use.reader != thread)) {
      throw std::runtime_error("PTX: no barrier between a thread's use of shared memory and another's write");
    }
    use.writer = thread;
    use.written = phase_;
  }
  return &bytes_[address];
}

}  // namespace penstock::test::ptx
