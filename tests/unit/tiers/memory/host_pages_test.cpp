#include "tiers/memory/host_pages.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <algorithm>
#include <cstddef>
#include <vector>

namespace penstock::tiers {
namespace {

TEST(HostPages, PopulatesEveryPageWithSeveralThreads) {
  const ByteCount size = 768_MiB + ByteCount(12'288);  // no whole number of huge pages
  void* const memory = ::mmap(nullptr, size.value(), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ::madvise(memory, size.value(), MADV_HUGEPAGE);
  ASSERT_TRUE(populate(static_cast<std::byte*>(memory), size));
  std::vector<unsigned char> pages(size.value() / 4096);
  ASSERT_EQ(::mincore(memory, size.value(), pages.data()), 0);
  EXPECT_EQ(std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) == 0; }), 0);
  ::munmap(memory, size.value());
}

}  // namespace
}  // namespace penstock::tiers
