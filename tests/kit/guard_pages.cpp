#include "kit/guard_pages.hpp"

#include <penstock/base/check.hpp>

#include <sys/mman.h>
#include <unistd.h>

namespace penstock::test {

GuardedBytes::GuardedBytes(ByteCount size) {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t usable = round_up(size.value(), page);
  mapping_size_ = usable + 2 * page;
  mapping_ = ::mmap(nullptr, mapping_size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  PENSTOCK_CHECK(mapping_ != MAP_FAILED);
  auto* first = static_cast<std::byte*>(mapping_) + page;
  if (usable > 0) PENSTOCK_CHECK(::mprotect(first, usable, PROT_READ | PROT_WRITE) == 0);
  span_ = HostSpan(first + (usable - size.value()), size);
}

GuardedBytes::~GuardedBytes() {
  ::munmap(mapping_, mapping_size_);
}

}  // namespace penstock::test
