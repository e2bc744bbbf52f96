#include "tiers/memory/huge_pages.hpp"

#include "base/owned_fd.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <span>
#include <string>

namespace penstock::tiers {

namespace {
// From <linux/fs.h> of Linux 6.7 (Documentation/admin-guide/mm/pagemap.rst), which the supported systems lack.
struct PageRegion {
  std::uint64_t start, end, categories;
};
struct PageScan {
  std::uint64_t size, flags, start, end, walk_end, regions, region_count, pages_max;
  std::uint64_t inverted, mask, any_of, returned;
};
constexpr std::uint64_t page_is_huge = 1 << 6;
constexpr unsigned long scan_pages = _IOWR('f', 16, PageScan);
}  // namespace

std::optional<ByteCount> scan_huge_pages(HostSpan memory) {
  const OwnedFd pages(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!pages.is_open()) return std::nullopt;
  const auto start = reinterpret_cast<std::uintptr_t>(memory.data());
  std::array<PageRegion, 64> regions{};
  PageScan scan{.size = sizeof(PageScan),
                .start = start,
                .end = start + memory.size().value(),
                .regions = reinterpret_cast<std::uintptr_t>(regions.data()),
                .region_count = regions.size(),
                .mask = page_is_huge,
                .returned = page_is_huge};
  std::uint64_t huge = 0;
  while (scan.start < scan.end) {
    const int found = ::ioctl(pages.get(), scan_pages, &scan);
    if (found < 0 || scan.walk_end <= scan.start) return std::nullopt;
    for (const PageRegion& region : std::span(regions).first(static_cast<std::size_t>(found)))
      huge += region.end - region.start;
    scan.start = scan.walk_end;
  }
  return ByteCount(huge);
}

ByteCount huge_pages_in_smaps(HostSpan memory) {
  std::ifstream maps("/proc/self/smaps");
  char start[32];
  std::snprintf(start, sizeof start, "%lx-", reinterpret_cast<unsigned long>(memory.data()));
  std::string line;
  bool inside = false;
  while (std::getline(maps, line)) {
    if (line.compare(0, std::strlen(start), start) == 0) inside = true;
    if (inside && line.compare(0, 14, "AnonHugePages:") == 0)
      return ByteCount(std::strtoull(line.c_str() + 14, nullptr, 10) * 1024);
  }
  return {};
}

ByteCount bytes_on_huge_pages(HostSpan memory) {
  const auto scanned = scan_huge_pages(memory);
  return scanned ? *scanned : huge_pages_in_smaps(memory);
}

}  // namespace penstock::tiers
