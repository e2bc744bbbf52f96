#include "zero/idle_memory.hpp"

#include <gtest/gtest.h>
#include <string>

namespace penstock::zero {
namespace {

/// Two ranks of a machine whose 2^28 parameters are on nvme.
Config config_of_nvme() {
  Config config{.stage = 3};
  config.dtype = config.grad_accum_dtype = DType::bf16;
  config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"."}};
  return config;
}
MemoryPlan plan_of(const Config& config, std::uint64_t parameters = 1 << 28) {
  ModelLayout model;
  for (int unit = 0; unit < 16; ++unit) {
    model.units.push_back(
        {.name = std::to_string(unit), .parameters = {{"weight", ElementCount(parameters / 16), 0}}});
  }
  return plan_memory(config, model, 2, 2, tiers::DeviceMemory::host).value();
}
std::string note_with(ByteCount available, const Config& config, const MemoryPlan& plan) {
  return note_of_idle_memory(config, plan, {available, 64_GiB, "/proc/meminfo"});
}

// A rank has 2^27 parameters, whose states are 1.5 GiB. Of 8 GiB three quarters are for both ranks, of which they need
// 3; of 1 GiB each gets 384 MiB.
TEST(IdleMemory, BecomesHomeOfTilesWithTheBudgetThatIsNamed) {
  const Config config = config_of_nvme();
  const MemoryPlan plan = plan_of(config);
  ASSERT_EQ(plan.disk_tiles, 1536_MiB);
  ASSERT_TRUE(plan.home_tiles.is_zero());
  for (const auto& [available, kept] : {std::pair(8_GiB, 1536_MiB), {1_GiB, 384_MiB}}) {
    const std::string note = note_with(available, config, plan);
    Config roomy = config;
    roomy.penstock.host_budget = (plan.host_budget + kept) * 2;

    EXPECT_NE(note.find(to_exact_string(roomy.penstock.host_budget)), std::string::npos) << note;
    EXPECT_NE(note.find(to_string(kept) + " of the 1.5 GiB"), std::string::npos) << note;
    const MemoryPlan with_it = plan_of(roomy);
    EXPECT_GE(with_it.home_tiles + 16_MiB, kept) << "a tile less, where the budget cuts it";
    EXPECT_LE(with_it.home_tiles, kept);
    EXPECT_EQ(note_with(available, roomy, with_it), "") << "a budget is given";
  }
}

TEST(IdleMemory, IsNotWorthANoteWhereItChangesLittle) {
  const Config config = config_of_nvme();
  EXPECT_EQ(note_with(128_MiB, config, plan_of(config)), "") << "96 MiB are too few";
  EXPECT_EQ(note_with(8_GiB, config, plan_of(config, 1 << 20)), "") << "little moves";
  Config in_memory = config;
  in_memory.offload_optimizer = {.device = OffloadDevice::cpu};
  EXPECT_EQ(note_with(8_GiB, in_memory, plan_of(in_memory)), "") << "nothing moves";
}

}  // namespace
}  // namespace penstock::zero
