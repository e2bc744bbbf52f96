#include "tiers/memory/huge_pages.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <cstring>

namespace penstock::tiers {
namespace {

/// 64 MiB that have been written to, and of which the kernel was advised to use pages of 2 MiB, or not to.
class Mapping {
 public:
  explicit Mapping(int advice)
      : address_(::mmap(nullptr, size.value(), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (address_ == MAP_FAILED) return;
    ::madvise(address_, size.value(), advice);
    std::memset(address_, 1, size.value());
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { ::munmap(address_, size.value()); }

  [[nodiscard]] HostSpan bytes() const { return {static_cast<std::byte*>(address_), size}; }

 private:
  static constexpr ByteCount size = 64_MiB;
  void* address_;
};

TEST(HugePages, AreCountedAlikeInBothWays) {
  for (const int advice : {MADV_HUGEPAGE, MADV_NOHUGEPAGE}) {
    const Mapping mapping(advice);
    ASSERT_NE(mapping.bytes().data(), MAP_FAILED);
    const auto scanned = scan_huge_pages(mapping.bytes());
    if (!scanned) GTEST_SKIP() << "the kernel has no PAGEMAP_SCAN";
    EXPECT_EQ(*scanned, huge_pages_in_smaps(mapping.bytes()));
    EXPECT_EQ(*scanned, bytes_on_huge_pages(mapping.bytes()));
    if (advice == MADV_NOHUGEPAGE) {
      EXPECT_EQ(*scanned, 0_B);
    }
  }
}

// Every second one of 150 is a huge page, and a call returns 64 ranges at most.
TEST(HugePages, AreFoundAmongOthers) {
  const ByteCount page = 2_MiB, size = page * 300;
  void* const whole = ::mmap(nullptr, (size + page).value(), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(whole, MAP_FAILED);
  const auto aligned =
      (reinterpret_cast<std::uintptr_t>(whole) + page.value() - 1) / page.value() * page.value();
  auto* const start = reinterpret_cast<std::byte*>(aligned);
  ::madvise(start, size.value(), MADV_HUGEPAGE);
  for (std::uint64_t i = 150; i < 300; i += 2) start[i * page.value()] = std::byte{1};
  const HostSpan memory(start, size);
  const auto scanned = scan_huge_pages(memory);
  const ByteCount listed = huge_pages_in_smaps(memory);
  ::munmap(whole, (size + page).value());
  if (!scanned) GTEST_SKIP() << "the kernel has no PAGEMAP_SCAN";
  EXPECT_EQ(*scanned, listed);
  if (listed <= page * 64)
    GTEST_SKIP() << "the kernel gave too few huge pages for two calls: " << to_string(listed);
}

}  // namespace
}  // namespace penstock::tiers
