// The resident memory of a process that trains alone, on the CPU.
#include "kit/child_process.hpp"
#include "kit/sanitizer.hpp"

#include <penstock/tiers/device/host_device.hpp>
#include <penstock/zero/rank.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>

namespace penstock::zero {
namespace {

/// A field of /proc/self/status, in bytes.
std::uint64_t status(const std::string& field) {
  std::ifstream file("/proc/self/status");
  for (std::string key; file >> key; file.ignore(std::numeric_limits<std::streamsize>::max(), '\n')) {
    std::uint64_t kib = 0;
    if (key == field && file >> kib) return kib * 1024;
  }
  return 0;
}

void train(const ModelLayout& model, std::uint32_t steps) {
  auto rank = Rank::create({.config = {}, .model = model}).value();
  Engine& engine = rank->engine();
  auto stream = rank->device().create_stream().value();
  engine
      .initialize(
          [](ParameterId, std::uint64_t, std::span<float> values) { std::ranges::fill(values, 1.0f); })
      .value();
  for (std::uint32_t step = 0; step < steps; ++step) {
    engine.begin_step({}).value();
    const auto units = static_cast<std::uint32_t>(model.units.size());
    for (std::uint32_t unit = 0; unit < units; ++unit) (void)engine.acquire(unit, *stream).value();
    for (std::uint32_t unit = units; unit-- > 0;) {
      auto weights = engine.acquire(unit, *stream).value();
      auto gradients = engine.gradients(unit, *stream).value();
      for (const GradientSlot& slot : gradients.slots()) {
        std::ranges::fill(tiers::HostDevice::bytes(slot.tensor.bytes).as<float>(), 0.5f);
      }
      engine.reduce(std::move(gradients), *stream).value();
    }
    (void)engine.step().value();
  }
}

// Masters, both moments and gradients in fp32 take 16 bytes.
TEST(RankMemory, IsThatOfAPlainTrainerInFp32) {
  if (penstock::test::any_sanitizer) GTEST_SKIP() << "sanitizers need memory of their own";
  ModelLayout model;
  for (int unit = 0; unit < 8; ++unit) {
    model.units.push_back(
        {.name = std::to_string(unit), .parameters = {{"weight", ElementCount(2'000'000), 0}}});
  }
  const int percent = test::in_child([&] {
    std::ofstream("/proc/self/clear_refs") << "5";  // sets VmHWM to VmRSS
    const std::uint64_t before = status("VmRSS:");
    train(model, 2);
    const double bytes_each = static_cast<double>(status("VmHWM:") - before) / 16e6;
    std::printf("%.2f bytes a parameter\n", bytes_each);
    std::fflush(stdout);
    return static_cast<int>(bytes_each / 16 * 100);
  });
  EXPECT_GE(percent, 99);
  EXPECT_LE(percent, 110);
}

}  // namespace
}  // namespace penstock::zero
