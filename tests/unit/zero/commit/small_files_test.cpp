#include "zero/commit/small_files.hpp"

#include <gtest/gtest.h>

namespace penstock::zero::test {
namespace {

TEST(DirectoryAbove, HasTheNameAlsoOfOneThatEndsInASlash) {
  for (const char* directory : {"/mnt/run", "/mnt/run/", "/mnt/run//", "/mnt/./run/"})
    EXPECT_EQ(directory_above(directory), "/mnt") << directory;
  EXPECT_EQ(directory_above("run"), ".");
  EXPECT_EQ(directory_above("run/"), ".");
}

}  // namespace
}  // namespace penstock::zero::test
