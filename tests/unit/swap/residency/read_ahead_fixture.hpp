#pragma once

#include "unit/swap/residency/residency_fixture.hpp"

#include <gtest/gtest.h>

namespace penstock::swap::test {

/// With room for 64 KiB.
class ReadAhead : public testing::Test, protected ResidencyFixture {
 protected:
  ReadAhead() : ResidencyFixture({}) {}
  tiers::TensorId in_memory_only(ByteCount size) { return add(size, {}, /*on_disk=*/false).value(); }
  void remove(tiers::TensorId tensor) {
    residency.forget(tensor);
    (void)residency.remove(tensor);
  }
};

}  // namespace penstock::swap::test
