// Units that are gathered ahead and then not used.
#include "kit/counting_device.hpp"
#include "kit/deferred_rank.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

namespace penstock::zero {
namespace {

using test::DeferredRank;

constexpr std::uint32_t units = 6;
constexpr std::uint64_t elements = 1024;

void delay(StreamHandle stream) {
  for (int operation = 0; operation < 64; ++operation) stream.host_queue()->enqueue([] {});
}

/// Copies late to the device.
class LateDevice final : public penstock::test::CountingDevice {
 public:
  using CountingDevice::CountingDevice;
  Result<void> copy_to_device(StreamHandle stream, ConstHostSpan from, DeviceSpan to) override {
    delay(stream);
    return CountingDevice::copy_to_device(stream, from, to);
  }
};

/// Six units on a device with the smallest budget, in which four have room.
DeferredRank::Options options_of(std::uint64_t seed) {
  DeferredRank::Options options{.seed = seed};
  options.config.offload_param.device = options.config.offload_optimizer.device = OffloadDevice::cpu;
  options.config.dtype = options.config.grad_accum_dtype = DType::fp32;
  options.config.gradient_clipping = 0;
  for (std::uint32_t unit = 0; unit < units; ++unit) {
    options.model.units.push_back(
        {.name = std::to_string(unit), .parameters = {{"weight", ElementCount(elements), 0}}});
  }
  options.config.penstock.device_budget =
      plan_memory(options.config, options.model, 1, 1, tiers::DeviceMemory::separate).value().device_minimum;
  options.change = [](Accelerator& made) {
    made.device = std::make_unique<LateDevice>(std::move(made.device));
  };
  return options;
}

/// Its kernel writes ones.
void reduce_ones(DeferredRank& rank, std::uint32_t unit) {
  auto gradients = rank.engine().gradients(unit, rank.stream()).value();
  rank.enqueue([bytes = tiers::HostDevice::bytes(gradients.slots()[0].tensor.bytes)] {
    std::fill_n(reinterpret_cast<float*>(bytes.data()), elements, 1.0f);
  });
  delay(rank.stream().handle());
  rank.engine().reduce(std::move(gradients), rank.stream()).value();
}

// Two steps teach the engine an order of units. The third one differs when four fill the device: the one that is
// gathered ahead is dropped for a gradient.
TEST(EngineUnusedGather, HasEndedBeforeItsRangeIsAGradients) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    DeferredRank rank(options_of(seed));
    rank.engine()
        .initialize([](ParameterId, std::uint64_t, std::span<float> values) {
          std::fill(values.begin(), values.end(), 1000.0f);
        })
        .value();
    const auto use = [&rank](std::uint32_t unit) {
      rank.engine().acquire(unit, rank.stream()).value().end();
    };

    for (int step = 0; step < 3; ++step) {
      rank.engine().begin_step({.micro_batches = 1}).value();
      if (step < 2) {
        for (const std::uint32_t unit : {5u, 4u, 3u, 2u, 1u, 0u, 5u, 4u, 3u, 2u, 1u, 0u}) use(unit);
      } else {
        for (const std::uint32_t unit : {5u, 4u, 3u, 3u}) use(unit);
      }
      for (std::uint32_t unit = units; unit-- > 0;) reduce_ones(rank, unit);
      const auto outcome = rank.engine().step();

      ASSERT_TRUE(outcome) << outcome.error().message();
      ASSERT_EQ(outcome->gradient_norm, std::sqrt(double{units} * elements))
          << "seed " << seed << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace penstock::zero
