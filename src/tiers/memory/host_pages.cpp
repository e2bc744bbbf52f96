#include "tiers/memory/host_pages.hpp"

#include <sys/mman.h>
#include <cerrno>
#include <cstdint>

namespace penstock::tiers {

std::mutex& population_mutex() {
  static std::mutex mutex;
  return mutex;
}

bool populate(std::byte* address, ByteCount size) {
#ifdef MADV_POPULATE_WRITE
  if (::madvise(address, size.value(), MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;
#endif
  for (std::uint64_t at = 0; at < size.value(); at += 4096) address[at] = std::byte{0};
  return true;
}

}  // namespace penstock::tiers
