#include "tiers/memory/host_arena.hpp"

#include <penstock/tiers/memory/memory_limits.hpp>

#include "kit/child_process.hpp"
#include "kit/sanitizer.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include <algorithm>
#include <cstring>
#include <vector>

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

TEST(HostArena, SaysWhatIsNotOnTheNodesThatItShouldBeOn) {
  const std::string without = HostArena::create({.size = 4_MiB})->notes();
  EXPECT_EQ(HostArena::create({.size = 4_MiB, .nodes = {0}})->notes(),
            without);  // or mbind is not allowed here
  const std::string refused = HostArena::create({.size = 4_MiB, .nodes = {1023}})->notes();
  EXPECT_NE(refused.find("not bound to NUMA node 1023: mbind: "), std::string::npos) << refused;
}

/// How a child ends that reads the last byte of the arena, and writes its own copy.
int use_in_child(HostArena& arena) {
  std::byte& last = arena.bytes().data()[arena.bytes().size().value() - 1];
  last = std::byte{7};
  const int result = test::in_child([&] {
    const bool is_the_parents = last == std::byte{7};
    last = std::byte{8};
    return is_the_parents ? 0 : 1;
  });
  EXPECT_EQ(last, std::byte{7});
  return result;
}

TEST(HostArena, IsInForkedChildrenIfAskedFor) {
  auto inherited = HostArena::create({.size = 4_MiB, .is_inherited = true}).value();
  EXPECT_EQ(use_in_child(inherited), 0);
  EXPECT_NE(inherited.page_kind(), PageKind::huge);

  auto other = HostArena::create({.size = 4_MiB}).value();
  EXPECT_NE(use_in_child(other), 0);
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

/// Pages of `range` that the kernel has given to it.
std::size_t resident_pages(HostSpan range) {
  std::vector<unsigned char> pages(range.size().value() / 4096);
  if (::mincore(range.data(), range.size().value(), pages.data()) != 0) return ~std::size_t{0};
  return static_cast<std::size_t>(
      std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; }));
}

TEST(HostArena, GivesWholePagesBackAndTakesThemAgain) {
  for (const Pinning pinning : {Pinning::none, Pinning::preferred}) {
    auto arena = HostArena::create({.size = 8_MiB, .pinning = pinning}).value();
    std::memset(arena.bytes().data(), 7, (8_MiB).value());
    const HostSpan range = arena.bytes().subspan(1_MiB, 4_MiB);  // contains one page

    EXPECT_EQ(arena.give_back(range), 2_MiB);

    EXPECT_EQ(resident_pages(arena.bytes()), (6_MiB).value() / 4096);
    EXPECT_EQ(arena.bytes().data()[(2_MiB).value() - 1], std::byte{7});
    EXPECT_EQ(arena.bytes().data()[(4_MiB).value()], std::byte{7});
    ASSERT_TRUE(arena.take_back(range));
    EXPECT_EQ(resident_pages(arena.bytes()), (8_MiB).value() / 4096);
    EXPECT_EQ(arena.bytes().data()[(2_MiB).value()], std::byte{0});
  }
}

TEST(HostArena, GivesNothingBackOfARangeWithoutAWholePage) {
  auto arena = HostArena::create({.size = 8_MiB}).value();

  EXPECT_EQ(arena.give_back(arena.bytes().subspan(1_MiB, 2_MiB)), 0_B);
  EXPECT_EQ(arena.give_back({}), 0_B);
  EXPECT_TRUE(arena.take_back({}));
  EXPECT_EQ(resident_pages(arena.bytes()), (8_MiB).value() / 4096);
}

TEST(HostArena, SaysThatItCannotPinWhatItHasTakenBack) {
  if (test::any_sanitizer) GTEST_SKIP() << "a sanitizer locks no memory";
  const int result = test::in_child([] {
    auto arena = HostArena::create({.size = 4_MiB, .pinning = Pinning::preferred}).value();
    if (!arena.pinned() || arena.give_back(arena.bytes()) != 4_MiB) return 2;
    if (::setresuid(65534, 65534, 65534) != 0) return 3;  // root may lock memory without a limit
    const rlimit limit{0, 0};
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 4;
    if (!arena.take_back(arena.bytes())) return 5;
    const bool says_so = arena.notes().find("not pinned any more") != std::string::npos;
    return !arena.pinned() && says_so && resident_pages(arena.bytes()) == 1024 ? 0 : 6;
  });
  if (result == 2 || result == 3) GTEST_SKIP() << "this user can lock no memory, or is not root";
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace penstock::tiers
