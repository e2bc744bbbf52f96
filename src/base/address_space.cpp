#include "base/address_space.hpp"

#include <sys/resource.h>
#include <unistd.h>
#include <algorithm>
#include <cstdint>
#include <fstream>

namespace penstock {

std::optional<ByteCount> address_space_left() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  std::uint64_t pages = 0;  // of all mappings: the first number, proc(5)
  if (!(std::ifstream("/proc/self/statm") >> pages)) return std::nullopt;
  const std::uint64_t mapped = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return ByteCount(limit.rlim_cur - std::min<std::uint64_t>(limit.rlim_cur, mapped));
}

}  // namespace penstock
