// The example's bytes by tier and purpose under twelve configurations, predicted and actual, on the device that the
// build names: GPT_MEMORY_DEVICE.
#include "gpt/rank_threads.hpp"
#include "gpt/rank_trainer.hpp"
#include "gpt/tier_bytes.hpp"

#include "kit/scratch_directory.hpp"

#include <penstock/zero/comm/in_process_group.hpp>

#include <gtest/gtest.h>
#include <cstdint>
#include <fstream>
#include <mutex>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

namespace gpt {
namespace {

using namespace penstock;  // NOLINT: the test of an example reads better so
using tiers::Purpose;
using tiers::Tier;

struct Row {
  const char* name;
  std::uint32_t ranks, stage;
  const char* dtype;  ///< the key that enables it; null for fp32
  const char *offload_param, *offload_optimizer;
  const char* penstock = "";  ///< more members of the block
  std::uint32_t micro_batches = 2;
};

void PrintTo(const Row& row, std::ostream* out) {
  *out << row.name;
}

constexpr Row rows[] = {
    {"Stage0", 2, 0, nullptr, "none", "none"},
    {"Stage1OffloadsStates", 3, 1, "bf16", "none", "cpu"},
    {"Stage2StatesOnDisk", 2, 2, "bf16", "none", "nvme"},
    {"Stage3InMemory", 2, 3, "bf16", "none", "none"},
    {"Stage3OffloadsAll", 1, 3, "bf16", "cpu", "cpu", "", 1},
    {"Stage3OffloadsAllToFourRanks", 4, 3, "bf16", "cpu", "cpu", R"(, "state_format": "split")"},
    {"AllOnDisk", 2, 3, "bf16", "nvme", "nvme"},
    {"AllOnDiskOfOneRank", 1, 3, "bf16", "nvme", "nvme", R"(, "state_format": "split_q8")"},
    {"AllOnDiskInFp32", 3, 3, nullptr, "nvme", "nvme"},
    {"StatesOnDiskInRoomyMemory", 2, 3, "bf16", "cpu", "nvme",
     R"(, "host_budget": "4MiB", "device_budget": "1MiB", "state_format": "split_bf16")"},
    {"StatesInThreeTiers", 2, 3, "bf16", "cpu", "nvme",
     R"(, "host_budget": "4MiB", "device_states": "192KiB")"},
    {"ParametersOnDisk", 2, 3, "bf16", "nvme", "cpu", "", 3},
    {"Stage2InFp32OnDisk", 4, 2, nullptr, "none", "nvme", R"(, "device_budget": "2MiB")", 1},
};

class MemoryTable : public testing::TestWithParam<Row> {
 protected:
  zero::Config config() const {
    const Row& row = GetParam();
    const auto offload = [&](const char* device) {
      return R"({"device": ")" + std::string(device) + R"(", "nvme_path": ")" + directory_.path().string() +
             R"("})";
    };
    std::ostringstream text;
    text << R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )" << row.micro_batches
         << R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}})";
    if (row.dtype != nullptr) text << ", \"" << row.dtype << R"(": {"enabled": true})";
    text << R"(, "zero_optimization": {"stage": )" << row.stage << R"(, "offload_optimizer": )"
         << offload(row.offload_optimizer);
    if (row.stage == 3) text << R"(, "offload_param": )" << offload(row.offload_param);
    text << R"(}, "penstock": {"tile_elements": 16384)" << row.penstock << "}}";
    return zero::Config::from_text(text.str(), "test", row.ranks).value();
  }

  /// Trains four steps. Returns what each rank held.
  std::vector<std::vector<TierBytes>> train() {
    const Row& row = GetParam();
    const ModelConfig model{.layers = 3, .width = 32, .heads = 2, .context = 8};
    std::ofstream(directory_.path() / "text") << std::string(2000, 'a') << "the quick brown fox";
    const Text text = Text::load(directory_.path() / "text", model.context).value();
    const TrainingConfig training{
        .ranks = row.ranks, .micro_batches = row.micro_batches, .sequences = 2, .steps = 4};
    const auto group = zero::InProcessGroup::create(row.ranks).value();
    std::vector<std::vector<TierBytes>> held(row.ranks);
    const auto run = [&](std::uint32_t rank) -> Result<void> {
      PENSTOCK_TRY_ASSIGN(const auto trainer,
                          RankTrainer::create({.model = model,
                                               .training = training,
                                               .config = config(),
                                               .text = &text,
                                               .identity = zero::RankIdentity::local(rank, row.ranks),
                                               .group = zero::in_process_membership(group, rank),
                                               .make_device = GPT_MEMORY_DEVICE(model)}));
      for (std::uint32_t step = 0; step < training.steps; ++step) PENSTOCK_TRY(trainer->step(step));
      PENSTOCK_TRY(trainer->digest());  // after the last update
      swap::Runtime* const runtime = &trainer->runtime();
      held[rank] = tier_bytes({&runtime, 1});
      EXPECT_LE(runtime->ledger().peak(Tier::device), trainer->plan().device_budget);
      return ok();
    };
    EXPECT_TRUE(run_ranks(row.ranks, [&](std::uint32_t rank) {
      const auto done = run(rank);
      if (done) return;
      group->abort(rank, done.error());
      ADD_FAILURE() << done.error().message();
    }));
    return held;
  }

  test::ScratchDirectory directory_;
};

TEST_P(MemoryTable, IsPredictedExactly) {
  const auto held = train();

  for (std::uint32_t rank = 0; rank < held.size(); ++rank) {
    ByteCount host;
    for (const TierBytes& one : held[rank]) {
      SCOPED_TRACE("rank " + std::to_string(rank) + ", " + std::string(to_string(one.tier)) + ", " +
                   std::string(to_string(one.purpose)));
      EXPECT_EQ(one.actual.value(), one.predicted.value());
      EXPECT_LE(one.used.value(), one.predicted.value());
      if (one.tier == Tier::host) host += one.actual;
    }
    EXPECT_EQ(held[rank].empty(), false);
    EXPECT_GT(host, 0_B);
  }
}

INSTANTIATE_TEST_SUITE_P(Configurations, MemoryTable, testing::ValuesIn(rows),
                         [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace gpt
