#include "zero/estimate/config_search.hpp"

#include "zero/estimate/model_presets.hpp"
#include "zero/estimate/named_model.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <tuple>

namespace penstock::zero::estimate {
namespace {

using enum OffloadDevice;
using cpu_adam::StateFormat;

/// 3.9 M parameters.
ModelLayout small_gpt2() {
  ModelShape shape = *find_preset("gpt2");
  shape.hidden = 256;
  shape.intermediate = 1024;
  shape.layers = 3;
  shape.vocabulary = 5000;
  return layout_of(shape);
}

Config base() {
  Config config;
  config.dtype = config.grad_accum_dtype = DType::bf16;
  config.offload_param.nvme_paths = config.offload_optimizer.nvme_paths = {"/a", "/b"};
  config.train_batch_size = 2;
  return config;
}

SearchOptions options_with(ByteCount host, ByteCount device) {
  return {.base = base(), .run = {.ranks_per_node = 2}, .host_budget = host, .device_budget = device};
}

ConfigSearch search(const SearchOptions& options) {
  return ConfigSearch::run(options, small_gpt2()).value();
}

bool is_lossy(const Candidate& candidate) {
  const StateFormat format = candidate.config.penstock.state_format;
  return format != StateFormat::fp32 && format != StateFormat::split;
}

const ByteCount hosts[] = {10_MiB, 26_MiB, 60_MiB, 80_MiB}, devices[] = {12_MiB, 14_MiB, 40_MiB, 48_MiB};

TEST(ConfigSearch, ChoosesTheCheapestThatFits) {
  std::size_t chosen = 0;
  for (const ByteCount host : hosts) {
    for (const ByteCount device : devices) {
      const SearchOptions options = options_with(host, device);
      const ConfigSearch found = search(options);

      for (std::size_t i = 0; i < found.candidates.size(); ++i) {
        Config config = found.candidates[i].config;
        EXPECT_EQ(config.penstock.host_budget, host);
        EXPECT_EQ(config.penstock.device_budget, device);
        const bool fits = plan_memory(config, small_gpt2(), 2, 2).has_value();
        EXPECT_EQ(found.candidates[i].chosen.has_value(), fits) << found.candidates[i].name();
        const bool is_cheaper = found.best && i < *found.best;
        EXPECT_FALSE(is_cheaper && fits) << found.candidates[i].name();
        if (i == 0) continue;
        const Candidate &before = found.candidates[i - 1], &after = found.candidates[i];
        EXPECT_LE(std::tie(before.nvme, before.device), std::tie(after.nvme, after.device));
      }
      if (found.best) ++chosen;
    }
  }
  EXPECT_GT(chosen, 8u);
  EXPECT_LT(chosen, 16u) << "some budgets are too small";
}

TEST(ConfigSearch, KeepsEverythingOnTheDeviceWhereThatHasRoom) {
  const ConfigSearch found = search(options_with({}, 4_GiB));

  ASSERT_EQ(found.best, 0u);
  EXPECT_EQ(found.candidates[0].name(), "stage 2, offload_optimizer none, state_format fp32");
  EXPECT_EQ(found.candidates[0].nvme + found.candidates[0].device, 0_B);
}

TEST(ConfigSearch, UsesHostMemoryBeforeDisks) {
  const auto best = [](ByteCount host) {
    const ConfigSearch found = search(options_with(host, 14_MiB));
    return found.candidates[found.best.value()].name();
  };

  EXPECT_EQ(best(80_MiB), "stage 2, offload_optimizer cpu, state_format fp32");
  EXPECT_EQ(best(60_MiB), "stage 2, offload_optimizer cpu, state_format split")
      << "an exact format that is smaller comes before a disk";
  EXPECT_NE(best(40_MiB).find("nvme"), std::string::npos) << best(40_MiB);
}

TEST(ConfigSearch, KeepsOnTheDeviceWhatItsBudgetLeaves) {
  const auto states = [](ByteCount device) {
    const ConfigSearch found = search(options_with(40_MiB, device));
    const Candidate& best = found.candidates[found.best.value()];
    EXPECT_LE(best.chosen->plan.device_minimum, device) << best.name();
    EXPECT_EQ(best.name().find("device_states") != std::string::npos,
              !best.config.penstock.device_states.is_zero());
    return std::pair(best.chosen->plan.device_tiles, best.nvme);
  };
  const auto few = states(25_MiB), more = states(29_MiB);
  EXPECT_GT(few.first, 0_B);
  EXPECT_GT(more.first, few.first);
  EXPECT_LT(more.second, few.second);
}

// The budget's part that no tile takes is smaller than a tile, also where others pass through the device.
TEST(ConfigSearch, UsesTheDevicesBudgetToATile) {
  const ByteCount tile = 3_MiB;
  for (const float ratio : {1.0f, 0.3f}) {
    std::uint32_t keeping = 0;
    for (ByteCount device = 14_MiB; device < 60_MiB; device += 300_KiB) {
      SearchOptions options = options_with({}, device);
      options.base.cpu_update_ratio = ratio;
      for (const Candidate& one : search(options).candidates) {
        if (!one.chosen || one.config.penstock.device_states.is_zero()) continue;
        const MemoryPlan& plan = one.chosen->plan;
        EXPECT_LE(one.device_need, device) << one.name();
        EXPECT_EQ(one.device_need, plan.device_minimum) << one.name();
        EXPECT_TRUE(plan.tiles_kept == plan.tiles || plan.device_minimum + tile > device)
            << to_string(device) << ": " << one.name();
        ++keeping;
      }
    }
    EXPECT_GT(keeping, ratio == 1 ? 750u : 360u) << ratio;  // of the candidates of all budgets
  }
}

// A format whose tiles have no room is left out; if there is no other, the search says what is wanted.
TEST(ConfigSearch, LeavesOutFormatsOfWhichATileHasNoRoomInTheStatesOfTheBase) {
  SearchOptions options = options_with({}, {});
  options.base.penstock.tile_elements = ElementCount(1 << 17);
  options.base.penstock.device_states = 1400_KiB;  // of fp32 a tile has 1.5 MiB, of split 1.25
  for (const Candidate& one : search(options).candidates) {
    EXPECT_TRUE(one.config.offload_optimizer.device == OffloadDevice::none ||
                one.config.penstock.state_format == StateFormat::split)
        << one.name();
  }
}

// The states alone take more than host memory has; the device keeps a part of them, so that no drive is needed.
TEST(ConfigSearch, KeepsStatesOnTheDeviceForWhichHostMemoryHasNoRoom) {
  const ConfigSearch found = search(options_with(52_MiB, 30_MiB));
  const Candidate& best = found.candidates[found.best.value()];
  EXPECT_EQ(best.config.offload_optimizer.device, OffloadDevice::cpu) << best.name();
  EXPECT_FALSE(best.config.penstock.device_states.is_zero()) << best.name();
  EXPECT_TRUE(best.nvme.is_zero());
}

TEST(ConfigSearch, LeavesOutWhatOnlyParametersOnDiskHave) {
  SearchOptions options = options_with({}, {});
  options.base.max_in_cpu = ElementCount(1000);
  for (const Candidate& candidate : search(options).candidates) {
    EXPECT_EQ(candidate.config.max_in_cpu.has_value(),
              candidate.config.offload_param.device == OffloadDevice::nvme)
        << candidate.name();
  }
}

TEST(ConfigSearch, TriesLossyFormatsOnlyWhenAsked) {
  SearchOptions options = options_with(40_MiB, 14_MiB);
  const auto lossy = [&] {
    const auto found = search(options);
    return std::count_if(found.candidates.begin(), found.candidates.end(), is_lossy);
  };

  EXPECT_EQ(lossy(), 0);
  const ByteCount exact = search(options).candidates[search(options).best.value()].nvme;
  options.lossy = true;
  EXPECT_EQ(lossy(), 2 * 10);
  EXPECT_LT(search(options).candidates[search(options).best.value()].nvme, exact);
}

TEST(ConfigSearch, NeedsExactlyWhatItSays) {
  for (const Candidate& candidate : search(options_with({}, {})).candidates) {
    const auto plan = [&](ByteCount host, ByteCount device) {
      Config config = candidate.config;
      config.penstock.host_budget = host;
      config.penstock.device_budget = device;
      return plan_memory(config, small_gpt2(), 2, 2).has_value();
    };

    EXPECT_TRUE(plan(candidate.host_need, candidate.device_need)) << candidate.name();
    EXPECT_FALSE(plan(candidate.host_need - 2_B, candidate.device_need)) << candidate.name();
    EXPECT_FALSE(plan(candidate.host_need, candidate.device_need - 1_B)) << candidate.name();
  }
}

TEST(ConfigSearch, SaysTheSmallestNeedsWhereNothingFits) {
  const SearchOptions options = options_with(1_MiB, 1_MiB);
  const ConfigSearch found = search(options);

  ASSERT_FALSE(found.best);
  const Error error = found.nothing_fits(options);
  EXPECT_EQ(error.code(), ErrorCode::budget_too_small);
  for (const Candidate& candidate : found.candidates) {
    EXPECT_GT(candidate.host_need, 1_MiB);
    EXPECT_GT(candidate.device_need, 1_MiB);
  }
  for (const char* words : {"host    at least", "device  at least", "--budget-host 1.0 MiB", "--lossy"}) {
    EXPECT_NE(error.message().find(words), std::string::npos) << error.message();
  }
}

TEST(ConfigSearch, SaysWhatIsNeededWithinTheOtherBudget) {
  // Either budget alone is large enough for some candidate.
  const SearchOptions options = options_with(10_MiB, 14_MiB);
  const ConfigSearch found = search(options);
  const auto least = [&](ByteCount Candidate::*need, ByteCount Candidate::*other, ByteCount budget) {
    ByteCount smallest = 1_GiB;
    for (const Candidate& candidate : found.candidates) {
      if (candidate.*other <= budget) smallest = std::min(smallest, candidate.*need);
    }
    return to_exact_string(smallest);
  };

  ASSERT_FALSE(found.best);
  const std::string message = found.nothing_fits(options).message();
  for (const std::string& words :
       {"host    at least " + least(&Candidate::host_need, &Candidate::device_need, 14_MiB) +
            " a node within the device's budget: stage 3, offload_param nvme, offload_optimizer nvme",
        "device  at least " + least(&Candidate::device_need, &Candidate::host_need, 10_MiB) +
            " a rank within the host's budget: stage 3, offload_param none, offload_optimizer none"}) {
    EXPECT_NE(message.find(words), std::string::npos) << words << "\n" << message;
  }
}

TEST(ConfigSearch, LeavesOutWhatTheConfigurationCannotHave) {
  const auto candidates = [](auto change) {
    SearchOptions options = options_with({}, {});
    options.lossy = true;
    change(options.base);
    return search(options).candidates;
  };
  const auto all = candidates([](Config&) {});
  const auto fp16 = candidates([](Config& config) { config.dtype = config.grad_accum_dtype = DType::fp16; });
  const auto ratio = candidates([](Config& config) { config.cpu_update_ratio = 0.5f; });
  const auto sum = candidates([](Config& config) { config.gradient_allreduce_op = AllreduceOp::sum; });

  EXPECT_EQ(all.size(), 10u * 4);
  EXPECT_EQ(fp16.size(), 10u);
  EXPECT_EQ(ratio.size(), 7u * 4);
  for (const Candidate& candidate : ratio) EXPECT_EQ(candidate.config.stage, 3u);
  EXPECT_EQ(sum.size(), 3u * 4);
  SearchOptions neither = options_with({}, {});
  neither.base.cpu_update_ratio = 0.5f;
  neither.base.gradient_allreduce_op = AllreduceOp::sum;
  EXPECT_EQ(ConfigSearch::run(neither, small_gpt2()).error().code(), ErrorCode::invalid_argument);
}

// The keys that make the parameters the masters are the user's choice, not a way to need less memory.
TEST(ConfigSearch, KeepsTheMastersOfItsBase) {
  using cpu_adam::StateFormat;
  for (const StateFormat format : {StateFormat::moments, StateFormat::moments_bf16}) {
    SearchOptions options = options_with({}, {});
    options.lossy = true;
    options.base.penstock.state_format = format;
    const auto candidates = search(options).candidates;
    EXPECT_EQ(candidates.size(), format == StateFormat::moments ? 6u : 10u);
    for (const Candidate& candidate : candidates) {
      EXPECT_EQ(candidate.config.penstock.state_format, format);
      const auto read = Config::from_text(to_short_json(candidate.config), "text", 2);
      ASSERT_TRUE(read) << read.error().message();
      EXPECT_EQ(read->to_json(), candidate.config.to_json());
    }
  }
}

TEST(ConfigSearch, ReturnsTheErrorOfAConfigurationThatCannotBeUsed) {
  SearchOptions options = options_with({}, {});
  options.base.penstock.path_weights = {1, 2, 3};

  const auto found = ConfigSearch::run(options, small_gpt2());

  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code(), ErrorCode::invalid_config);
}

TEST(ConfigSearch, WritesEachCandidateAsTextThatGivesTheSamePlan) {
  SearchOptions options = options_with(4_GiB, 4_GiB);
  options.lossy = true;
  options.base.gradient_accumulation_steps = 3;
  options.base.train_batch_size = 6;
  options.base.optimizer.learning_rate = 6e-4;
  for (const DType accumulated : {DType::bf16, DType::fp32}) {
    options.base.grad_accum_dtype = accumulated;
    for (const Candidate& candidate : search(options).candidates) {
      const std::string text = to_short_json(candidate.config);
      const auto read = Config::from_text(text, "text", 2);

      ASSERT_TRUE(read) << read.error().message();
      EXPECT_EQ(read->to_json(), candidate.config.to_json());
      ASSERT_TRUE(candidate.chosen);
      EXPECT_EQ(plan_memory(*read, small_gpt2(), 2, 2).value().fingerprint,
                candidate.chosen->plan.fingerprint)
          << text;
      EXPECT_EQ(plan_memory(*read, small_gpt2(), 2, 2).value().tile_elements,
                candidate.chosen->plan.tile_elements);
      EXPECT_TRUE(Config::from_text(text, "text", 64)) << "no batch size of all ranks";
      EXPECT_LT(text.size(), 1000u);
    }
  }
}

TEST(ConfigSearch, LeavesOutTheDeviceForStatesThatOnlyTheCpuUpdates) {
  SearchOptions options = options_with({}, {});
  options.base.optimizer.type = cpu_adam::Optimizer::lion;
  const ConfigSearch found = search(options);
  ASSERT_TRUE(found.best);
  for (const Candidate& candidate : found.candidates)
    EXPECT_NE(candidate.config.offload_optimizer.device, none);

  options.base.optimizer.type = cpu_adam::Optimizer::muon;
  NamedModel model{.name = "small", .source = "", .layout = small_gpt2(), .notes = {}};
  model.use_muon().value();
  EXPECT_TRUE(ConfigSearch::run(options, model.layout).value().best);
}

}  // namespace
}  // namespace penstock::zero::estimate
