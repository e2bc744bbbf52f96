#include "zero/estimate/estimate.hpp"

#include "kit/golden.hpp"

#include <penstock/zero/layout/memory_plan.hpp>

#include <gtest/gtest.h>
#include <json/json.h>

namespace penstock::zero {
namespace {

using tiers::Purpose;
using tiers::Tier;

DeepSpeedEstimateOptions options_of(const Json::Value& one) {
  return {.total_params = ElementCount(one["total_params"].asUInt64()),
          .largest_layer_params = ElementCount(one["largest_layer_params"].asUInt64()),
          .gpus_per_node = one["num_gpus_per_node"].asUInt(),
          .nodes = one["num_nodes"].asUInt(),
          .additional_buffer_factor = one["additional_buffer_factor"].asDouble(),
          .params_are_floats = one["params_given_as"] == "float",
          .factor_is_integer = !one["additional_buffer_factor"].isDouble()};
}

TEST(DeepSpeedEstimate, HasTheVeryBytesAndTablesOfDeepSpeed) {
  const Json::Value golden = test::golden_json("estimator.json");
  std::size_t compared = 0;
  for (const Json::Value& one : golden["cases"]) {
    for (const std::uint32_t stage : {2u, 3u}) {
      const std::string key = stage == 2 ? "zero2" : "zero3";
      SCOPED_TRACE(key + " of " + one["total_params"].asString());
      const auto options = options_of(one);

      EXPECT_EQ(deepspeed_estimate_table(stage, options).value(), one[key + "_text"].asString());
      const auto rows = deepspeed_estimate(stage, options).value();
      ASSERT_EQ(rows.size(), one[key + "_rows"].size());
      for (std::size_t i = 0; i < rows.size(); ++i, ++compared) {
        const Json::Value& expected = one[key + "_rows"][static_cast<Json::ArrayIndex>(i)];
        EXPECT_EQ(to_decimal(rows[i].cpu_bytes), expected["cpu_bytes"].asString());
        EXPECT_EQ(to_decimal(rows[i].gpu_bytes), expected["gpu_bytes"].asString());
        EXPECT_EQ(to_string(rows[i].offload_optimizer), expected["offload_optimizer"].asString());
      }
    }
  }
  EXPECT_EQ(compared, 13u * 8);
}

TEST(DeepSpeedEstimate, KeepsIntegersExactWherePythonDoesAndRoundsWherePythonRounds) {
  // 4 * (2^62 + 1) is 2^64 + 4: past 64 bits, and past the 53 of a double.
  const ElementCount odd((std::uint64_t{1} << 62) + 1);

  const auto exact = deepspeed_estimate(3, {.total_params = odd, .largest_layer_params = odd}).value();
  const auto rounded =
      deepspeed_estimate(3, {.total_params = odd, .largest_layer_params = odd, .params_are_floats = true})
          .value();

  EXPECT_EQ(to_decimal(exact[0].gpu_bytes), "18446744073709551620");
  EXPECT_EQ(to_decimal(rounded[0].gpu_bytes), "18446744073709551616");
}

TEST(DeepSpeedEstimate, RefusesOtherStagesAndNoGpus) {
  EXPECT_FALSE(deepspeed_estimate(1, {}));
  EXPECT_FALSE(deepspeed_estimate(3, {.gpus_per_node = 0}));
  EXPECT_FALSE(deepspeed_estimate(3, {.nodes = 0}));
  EXPECT_FALSE(deepspeed_estimate(3, {.additional_buffer_factor = -1}));
}

TEST(RunEstimate, CountsEachPurposeInItsTier) {
  // A shard is 2^20 elements, a unit's 2^16.
  const auto estimate = estimate_run({.parameters = ElementCount(8 << 20),
                                      .largest_unit = ElementCount(8 << 16),
                                      .ranks_per_node = 4,
                                      .nodes = 2,
                                      .offload_param = OffloadDevice::nvme,
                                      .offload_optimizer = OffloadDevice::nvme,
                                      .tile_elements = ElementCount(16384),
                                      .tiles_in_flight = 4})
                            .value();

  const auto line = [&](Tier tier, Purpose purpose) {
    for (const auto& each : estimate.lines) {
      if (each.tier == tier && each.purpose == purpose) return each.per_rank;
    }
    return ByteCount();
  };
  EXPECT_EQ(line(Tier::device, Purpose::gathered_flat), 2_MiB);
  EXPECT_EQ(line(Tier::device, Purpose::full_gradient), 2_MiB);
  EXPECT_EQ(line(Tier::host, Purpose::gradient_shard), 2_MiB);
  EXPECT_EQ(line(Tier::host, Purpose::staging),
            128_KiB + 128_KiB + 3 * 192_KiB + 10 * 192_KiB);  // and the tiles in flight
  EXPECT_EQ(line(Tier::host, Purpose::scratch), 4_KiB);       // sums of squares
  EXPECT_EQ(line(Tier::nvme, Purpose::parameter_shard), 2_MiB);
  EXPECT_EQ(line(Tier::nvme, Purpose::optimizer_tile), 12_MiB);
  EXPECT_EQ(estimate.per_node(Tier::nvme), 4 * 14_MiB);
  EXPECT_EQ(estimate.read_per_step_per_node(), 4 * 16_MiB);
  EXPECT_EQ(estimate.written_per_step_per_node(), 4 * 14_MiB);
}

TEST(RunEstimate, MovesNothingWhenNothingIsOnDisk) {
  const auto estimate = estimate_run({.parameters = ElementCount(1 << 20),
                                      .largest_unit = ElementCount(1 << 16),
                                      .offload_param = OffloadDevice::none,
                                      .offload_optimizer = OffloadDevice::cpu})
                            .value();

  EXPECT_TRUE(estimate.traffic.empty());
  EXPECT_TRUE(estimate.per_node(Tier::nvme).is_zero());
  EXPECT_EQ(estimate.per_rank(Tier::host), 2_MiB + 12_MiB + 2_MiB + 2 * 128_KiB + 4_KiB);
}

TEST(RunEstimate, CountsOneMomentOfLionAndAdagrad) {
  for (const auto optimizer : {cpu_adam::Optimizer::lion, cpu_adam::Optimizer::adagrad}) {
    const auto estimate = estimate_run({.parameters = ElementCount(1 << 20),
                                        .largest_unit = ElementCount(1 << 16),
                                        .offload_param = OffloadDevice::none,
                                        .offload_optimizer = OffloadDevice::cpu,
                                        .optimizer = optimizer})
                              .value();
    EXPECT_EQ(estimate.per_rank(Tier::host), 2_MiB + 8_MiB + 2_MiB + 2 * 128_KiB + 4_KiB);
  }
}

TEST(RunEstimate, AccumulatesInTheTypeAskedForAndReadsParametersEachMicroBatch) {
  const auto estimate = estimate_run({.parameters = ElementCount(1 << 20),
                                      .largest_unit = ElementCount(1 << 20),
                                      .grad_accum_dtype = DType::fp32,
                                      .micro_batches = 3,
                                      .offload_optimizer = OffloadDevice::none})
                            .value();

  EXPECT_EQ(estimate.read_per_step_per_node(), 3 * 2 * 2_MiB);
  EXPECT_EQ(estimate.written_per_step_per_node(), 2_MiB);
  // Staging, since parameters stream through host memory; and pieces of states. The device has states and accumulator.
  EXPECT_EQ(estimate.per_rank(Tier::host), 8_MiB + 3_MiB + 4_KiB);
  // One gathered unit is the whole model: 2; its gradient: 2; states 12, accumulator 4. Updated parameters pass it: 2.
  EXPECT_EQ(estimate.per_rank(Tier::device), 4_MiB + 12_MiB + 4_MiB + 4_KiB + 2_MiB + 4_KiB);
}

TEST(RunEstimate, KeepsOnTheDeviceWhatIsNotOffloaded) {
  RunEstimateOptions options{.parameters = ElementCount(1 << 20), .largest_unit = ElementCount(1 << 16)};
  const auto estimate = [&](OffloadDevice parameters, OffloadDevice optimizer) {
    options.offload_param = parameters;
    options.offload_optimizer = optimizer;
    return estimate_run(options).value();
  };
  const auto none = estimate(OffloadDevice::none, OffloadDevice::none),
             states = estimate(OffloadDevice::cpu, OffloadDevice::none),
             cpu = estimate(OffloadDevice::cpu, OffloadDevice::cpu);

  // Parameters 2, states 12, gradients 2; what four kernels report. To host memory: pieces of states and parameters.
  EXPECT_EQ(none.per_rank(Tier::device), cpu.per_rank(Tier::device) + 16_MiB + 16_KiB);
  EXPECT_EQ(none.per_rank(Tier::host), 768_KiB + 128_KiB + 4_KiB);
  EXPECT_EQ(states.per_rank(Tier::device), none.per_rank(Tier::device) - 2_MiB + 4 * 128_KiB);
  EXPECT_GT(cpu.per_rank(Tier::host), 16_MiB);
  EXPECT_EQ(estimate(OffloadDevice::none, OffloadDevice::cpu).per_rank(Tier::host), cpu.per_rank(Tier::host));
}

/// A model of six equal units, on a device with memory of its own.
TEST(RunEstimate, HasThePlansBudgets) {
  constexpr std::uint32_t units = 6, ranks = 2;
  constexpr ElementCount unit_elements(1 << 20);
  ModelLayout model;
  for (std::uint32_t unit = 0; unit < units; ++unit) {
    model.units.push_back({.name = std::to_string(unit), .parameters = {{"weight", unit_elements, 0}}});
  }
  const auto compare = [&](const Config& config) {
    const MemoryPlan plan = plan_memory(config, model, ranks, ranks, tiers::DeviceMemory::separate).value();
    const RunEstimate estimate = estimate_run({.parameters = unit_elements * units,
                                               .largest_unit = unit_elements,
                                               .ranks_per_node = ranks,
                                               .dtype = config.dtype,
                                               .grad_accum_dtype = config.grad_accum_dtype,
                                               .offload_param = config.offload_param.device,
                                               .offload_optimizer = config.offload_optimizer.device,
                                               .state_format = config.penstock.state_format,
                                               .tile_elements = config.penstock.tile_elements,
                                               .tiles_in_flight = config.penstock.tiles_in_flight,
                                               .cpu_update_ratio = config.cpu_update_ratio,
                                               .update_split = config.penstock.update_split,
                                               .device_states = config.penstock.device_states})
                                     .value();
    EXPECT_EQ(estimate.per_rank(Tier::host), plan.host_budget);
    EXPECT_EQ(estimate.per_rank(Tier::device), plan.device_budget);
    EXPECT_EQ(estimate.per_rank(Tier::nvme), plan.swap_bytes);
  };
  using enum OffloadDevice;
  Config config{.stage = 3};
  config.dtype = DType::bf16;
  config.offload_param.nvme_paths = config.offload_optimizer.nvme_paths = {"."};
  for (const auto format : {cpu_adam::StateFormat::fp32, cpu_adam::StateFormat::split_q8}) {
    for (const auto& [parameters, optimizer] :
         {std::pair(none, none), std::pair(nvme, none), std::pair(cpu, cpu), std::pair(nvme, nvme)}) {
      for (const auto tile : {std::optional(ElementCount(1 << 17)), std::optional<ElementCount>()}) {
        for (const auto& [split, ratio] :
             {std::pair(UpdateSplit::ratio, 1.0f), std::pair(UpdateSplit::ratio, 0.5f),
              std::pair(UpdateSplit::ratio, 0.0f), std::pair(UpdateSplit::automatic, 1.0f)}) {
          SCOPED_TRACE(std::string(to_string(format)) + " " + std::string(to_string(parameters)) + " " +
                       std::string(to_string(optimizer)) + " " + std::string(to_string(split)) + " " +
                       std::to_string(ratio));
          config.grad_accum_dtype = ratio == 1 ? DType::fp32 : DType::bf16;
          config.offload_param.device = parameters;
          config.offload_optimizer.device = optimizer;
          config.penstock.state_format = format;
          config.penstock.tile_elements = tile;
          config.penstock.update_split = split;
          config.cpu_update_ratio = ratio;
          compare(config);
          if (optimizer == none) continue;
          for (const ByteCount kept : {8_MiB, 1_GiB}) {
            config.penstock.device_states = kept;
            compare(config);
          }
          config.penstock.device_states = {};
        }
      }
    }
  }
}

TEST(RunEstimate, RefusesWhatCannotBe) {
  const RunEstimateOptions good{.parameters = ElementCount(10), .largest_unit = ElementCount(5)};
  ASSERT_TRUE(estimate_run(good));

  auto no_parameters = good, large_unit = good, no_ranks = good, format = good, ratio = good;
  no_parameters.parameters = ElementCount(0);
  large_unit.largest_unit = ElementCount(11);
  no_ranks.nodes = 0;
  format.state_format = cpu_adam::StateFormat::split_q8;
  format.dtype = DType::fp16;
  ratio.cpu_update_ratio = 1.5f;

  EXPECT_EQ(estimate_run(no_parameters).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(estimate_run(large_unit).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(estimate_run(no_ranks).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(estimate_run(format).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(estimate_run(ratio).error().code(), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace penstock::zero
