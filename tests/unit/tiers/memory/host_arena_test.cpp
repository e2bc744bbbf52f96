#include "tiers/memory/host_arena.hpp"

#include <penstock/tiers/memory/memory_limits.hpp>

#include "kit/child_process.hpp"
#include "kit/sanitizer.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace penstock::tiers {
namespace {

TEST(HostArena, IsAlignedAndExactAndReportsItsPages) {
  auto arena = HostArena::create({.size = 5_MiB}).value();

  EXPECT_EQ(arena.bytes().size(), 6_MiB);
  EXPECT_TRUE(is_aligned(arena.bytes().data(), Alignment(2 << 20)));
  EXPECT_EQ(arena.page_kind() == PageKind::base, !arena.notes().empty());
  arena.bytes().data()[(6_MiB).value() - 1] = std::byte{1};
}

TEST(HostArena, RefusesMoreMemoryThanTheMachineHas) {
  auto arena = HostArena::create({.size = memory_limit().available * 2});

  ASSERT_FALSE(arena);
  EXPECT_EQ(arena.error().code(), ErrorCode::no_space);
}

TEST(HostArena, ReturnsARefusalOfAddressSpace) {
  if (test::any_sanitizer) GTEST_SKIP() << "a sanitizer needs more address space";
  const int result = test::in_child([] {
    const rlimit limit{1 << 30, 1 << 30};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) return 2;
    const auto arena = HostArena::create({.size = 1_GiB});
    return !arena && arena.error().code() == ErrorCode::no_space ? 0 : 1;
  });
  EXPECT_EQ(result, 0);
}

TEST(HostArena, MayBeEmpty) {
  EXPECT_TRUE(HostArena::create({.size = 0_B})->bytes().empty());
}

TEST(HostArena, StaysMappedOnceItWasLeaked) {
  HostSpan bytes;
  {
    auto arena = HostArena::create({.size = 2_MiB}).value();
    bytes = arena.bytes();
    arena.leak();
  }
  bytes.data()[0] = std::byte{7};
  EXPECT_EQ(bytes.data()[0], std::byte{7});
}

}  // namespace
}  // namespace penstock::tiers
