#include "unit/arguments/bad_arguments.hpp"

#include <gtest/gtest.h>

namespace penstock::test {
namespace {

// The fake's memory cannot be accessed by host code, so that an argument that is used anyway is a fault.
TEST(CudaArguments, EveryBadArgumentOfAnUpdateIsRefused) {
  BadArguments bad;
  add_cuda_device_adam_rows(bad);
  for (const BadArgument& row : bad.rows()) {
    EXPECT_EQ(row.call(), "") << row.function << ": " << row.argument << " = " << row.value;
  }
  EXPECT_GE(bad.rows().size(), 24u);
}

}  // namespace
}  // namespace penstock::test
