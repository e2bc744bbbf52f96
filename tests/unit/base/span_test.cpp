#include <penstock/base/span.hpp>

#include <gtest/gtest.h>
#include <array>

namespace penstock {
namespace {

TEST(HostSpan, ViewsElementsAsBytesAndBack) {
  std::array<float, 4> values = {1, 2, 3, 4};
  HostSpan bytes{std::span(values)};

  EXPECT_EQ(bytes.size(), 16_B);
  EXPECT_EQ(bytes.subspan(4_B, 8_B).as<float>()[1], 3.0f);
  ConstHostSpan read_only = bytes;
  EXPECT_EQ(read_only.as<float>().size(), 4u);
}

TEST(DeviceTensor, SlicesByElements) {
  DeviceTensor tensor{DeviceSpan(DeviceAddress(1000), 64_B), DType::bf16};

  const DeviceTensor slice = tensor.slice(ElementCount(4), ElementCount(8));

  EXPECT_EQ(tensor.count(), ElementCount(32));
  EXPECT_EQ(slice.bytes.address(), DeviceAddress(1008));
  EXPECT_EQ(slice.bytes.size(), 16_B);
}

}  // namespace
}  // namespace penstock
