#include "gpt_host_backend.hpp"

#include <gtest/gtest.h>

namespace gpt::test {
namespace {

const BackendKind kinds[] = {
    {"HostEager",
     [](std::string&) -> std::unique_ptr<Backend> { return std::make_unique<HostBackend<EagerQueue>>(); }},
    {"HostDeferred", [](std::string&) -> std::unique_ptr<Backend> {
       return std::make_unique<HostBackend<DeferredQueue>>();
     }}};

TEST(HostOps, TouchNothingUntilTheirStreamRuns) {
  HostAllocator allocator;
  DeferredQueue queue;
  const auto ops = make_host_ops(allocator.allocate(penstock::ByteCount(64)).value()).value();
  float x = 1, y = 2;
  const auto tensor_of = [](float& value) {
    const auto address = penstock::DeviceAddress(reinterpret_cast<std::uintptr_t>(&value));
    return DeviceTensor{{address, penstock::ByteCount(4)}, penstock::DType::fp32};
  };

  ops->add(StreamHandle::of(queue), tensor_of(x), tensor_of(y));

  EXPECT_EQ(y, 2);
  x = 40;  // read when the stream runs, not when the operation was enqueued
  queue.wait();
  EXPECT_EQ(y, 42);
}

INSTANTIATE_TEST_SUITE_P(Host, AttentionConformance, ::testing::ValuesIn(kinds),
                         [](const auto& param) { return param.param.name; });
INSTANTIATE_TEST_SUITE_P(Host, LinearConformance, ::testing::ValuesIn(kinds),
                         [](const auto& param) { return param.param.name; });
INSTANTIATE_TEST_SUITE_P(Host, OpsConformance, ::testing::ValuesIn(kinds),
                         [](const auto& param) { return param.param.name; });
INSTANTIATE_TEST_SUITE_P(Host, ModelConformance, ::testing::ValuesIn(kinds),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace gpt::test
