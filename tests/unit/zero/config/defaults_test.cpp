#include "config_text.hpp"

#include "kit/print.hpp"

#include <penstock/zero/layout/memory_plan.hpp>

#include <gtest/gtest.h>
#include <tuple>

namespace penstock::zero {
namespace {

// The bindings name every member, so that a new one does not compile until it is compared.
auto members(const OffloadConfig& offload) {
  const auto& [device, paths, pin] = offload;
  return std::tie(device, paths, pin);
}
auto members(const OptimizerConfig& optimizer) {
  const auto& [type, decay_mode, rate, betas, epsilon, decay, correction, momentum, of_muon, of_adam] =
      optimizer;
  return std::tie(type, decay_mode, rate, betas, epsilon, decay, correction, momentum, of_muon, of_adam);
}
auto members(const DynamicLossScale& dynamic) {
  const auto& [power, window, hysteresis, consecutive, least] = dynamic;
  return std::tie(power, window, hysteresis, consecutive, least);
}
auto members(const MonitorConfig& monitor) {
  const auto& [enabled, path, name] = monitor;
  return std::tie(enabled, path, name);
}
auto members(const PenstockConfig& penstock) {
  const auto& [host, nodes, device, device_states, tile, in_flight, unit, eviction, release, engine,
               integrity, format, split, in_backward, non_finite, reduction, weights, path_nodes, rank_nodes,
               limits, endurance, warning, cap, reserve, report, timeline, durable, deadline, threads] =
      penstock;
  return std::tie(host, nodes, device, device_states, tile, in_flight, unit, eviction, release, engine,
                  integrity, format, split, in_backward, non_finite, reduction, weights, path_nodes,
                  rank_nodes, limits, endurance, warning, cap, reserve, report, timeline, durable, deadline,
                  threads);
}

void expect_equal(const Config& left, const Config& right) {
  const auto own_members = [](const Config& config) {
    const auto& [train, micro, steps, stage, dtype, accumulated, overflow, bucket, overlap, ahead, live,
                 small, all_small, reuse, param, optimizer_offload, in_cpu, cpu_ratio, optimizer, scheduler,
                 op, clipping, scale, dynamic_scale, csv, board, breakdown, block, depth, penstock, notes] =
        config;
    return std::tie(train, micro, steps, stage, dtype, accumulated, overflow, bucket, overlap, ahead, live,
                    small, all_small, reuse, in_cpu, cpu_ratio, op, clipping, scale, breakdown, block, depth);
  };
  EXPECT_TRUE(own_members(left) == own_members(right));
  EXPECT_TRUE(members(left.offload_param) == members(right.offload_param));
  EXPECT_TRUE(members(left.offload_optimizer) == members(right.offload_optimizer));
  EXPECT_TRUE(members(left.optimizer) == members(right.optimizer));
  EXPECT_TRUE(members(left.csv_monitor) == members(right.csv_monitor));
  EXPECT_TRUE(members(left.tensorboard) == members(right.tensorboard));
  EXPECT_TRUE(members(left.penstock) == members(right.penstock));
  EXPECT_TRUE(members(left.dynamic_loss_scale) == members(right.dynamic_loss_scale));
  EXPECT_EQ(left.scheduler.index(), right.scheduler.index());
  EXPECT_EQ(left.to_json(), right.to_json());
}

TEST(ConfigDefaults, MeansInCodeWhatTheSmallestFileMeans) {
  for (const std::uint32_t world_size : {1u, 4u}) {
    const auto smallest = read(R"({"train_micro_batch_size_per_gpu": 1})", world_size);
    Config expected;
    expected.train_batch_size = world_size;  // the only member that depends on the ranks

    ASSERT_TRUE(smallest) << smallest.error().message();
    expect_equal(*smallest, expected);
    EXPECT_TRUE(expected.validate()) << expected.validate().error().message();
  }
}

// A default that is written must not be read back as a value that was given: it would act like one.
TEST(ConfigDefaults, AreReadBackFromTheirTextWithEveryMemberEqual) {
  const std::string rest = R"("train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2,
      "offload_optimizer": {"device": "cpu"}})";
  for (
      const std::string& text :
      {std::string(R"({"train_micro_batch_size_per_gpu": 1})"), "{" + rest + "}",
       R"({"bf16": {"enabled": true}, "penstock": {"state_format": "split", "tile_elements": 32768}, )" +
           rest + "}",
       R"({"fp16": {"enabled": true, "fp16_master_weights_and_grads": true}, )" + rest + "}",
       R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true}, )" + rest + "}",
       R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true}, )" +
           rest + "}"}) {
    const auto config = read(text);
    ASSERT_TRUE(config) << config.error().message();

    const auto again = read(config->to_json());

    ASSERT_TRUE(again) << again.error().message();
    expect_equal(*again, *config);
    const auto plan = [](const Config& of) {
      return plan_memory(of,
                         {.units = {{.name = "layer", .parameters = {{"weight", ElementCount(1'000'000)}}}}},
                         1, 1)
          .value();
    };
    EXPECT_EQ(plan(*again).tile_elements, plan(*config).tile_elements);
    EXPECT_EQ(plan(*again).fingerprint, plan(*config).fingerprint);
  }
}

TEST(ConfigDefaults, RefusesAFileWithoutABatchSizeAndNamesTheSmallestFile) {
  for (const std::uint32_t world_size : {1u, 4u}) {
    for (const char* file : {"{}", R"({"gradient_accumulation_steps": 2})"}) {
      EXPECT_TRUE(
          contains(refusal(file, world_size),
                   "\n  train_batch_size: this or train_micro_batch_size_per_gpu must be given; for the "
                   "defaults set \"train_micro_batch_size_per_gpu\": 1"))
          << refusal(file, world_size);
    }
  }
}

}  // namespace
}  // namespace penstock::zero
