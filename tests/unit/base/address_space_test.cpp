// What RLIMIT_AS leaves is what can be mapped.
#include "base/address_space.hpp"

#include "kit/child_process.hpp"
#include "kit/sanitizer.hpp"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <sys/resource.h>

namespace penstock {
namespace {

bool can_map(ByteCount size) {
  void* const pages = ::mmap(nullptr, size.value(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return pages != MAP_FAILED && ::munmap(pages, size.value()) == 0;
}

TEST(AddressSpace, ThatIsLeftCanBeMapped) {
  if (test::any_sanitizer) GTEST_SKIP() << "a sanitizer needs more address space";
  const int result = test::in_child([] {
    const rlimit limit{rlim_t{4} << 30, rlim_t{4} << 30};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) return 2;
    const auto left = address_space_left();
    if (!left) return 3;
    return can_map(*left - 1_MiB) && !can_map(*left + 1_MiB) ? 0 : 1;
  });
  EXPECT_EQ(result, 0);
}

TEST(AddressSpace, HasNoEndWithoutALimit) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &limit), 0);
  if (limit.rlim_cur != RLIM_INFINITY) GTEST_SKIP() << "this process has a limit";
  EXPECT_FALSE(address_space_left());
}

}  // namespace
}  // namespace penstock
