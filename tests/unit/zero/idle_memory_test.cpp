#include "zero/idle_memory.hpp"

#include <gtest/gtest.h>
#include <string>

namespace penstock::zero {
namespace {

/// Of a machine with two ranks, whose states are on nvme.
Config config_of_nvme(OffloadDevice parameters) {
  Config config{.stage = 3};
  config.dtype = config.grad_accum_dtype = DType::bf16;
  config.offload_param = {.device = parameters, .nvme_paths = {"."}};
  config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"."}};
  return config;
}
ModelLayout model_of(std::uint64_t parameters) {
  ModelLayout model;
  for (int unit = 0; unit < 16; ++unit) {
    model.units.push_back(
        {.name = std::to_string(unit), .parameters = {{"weight", ElementCount(parameters / 16), 0}}});
  }
  return model;
}
MemoryPlan plan_of(const Config& config, std::uint64_t parameters = 1 << 28) {
  return plan_memory(config, model_of(parameters), 2, 2, tiers::DeviceMemory::separate).value();
}
std::string note_with(ByteCount available, const Config& config, std::uint64_t parameters = 1 << 28) {
  return note_of_idle_memory(config, model_of(parameters), plan_of(config, parameters),
                             {.ranks = 2, .local_ranks = 2}, tiers::DeviceMemory::separate,
                             {available, 64_GiB, "/proc/meminfo"});
}
/// The bytes in "(1234 B), 96.0 MiB of": the budget that a note names.
ByteCount budget_in(const std::string& note) {
  const std::size_t end = note.find(" B), ");
  if (end == note.npos) return {};
  return ByteCount(std::stoull(note.substr(note.rfind('(', end) + 1)));
}

// A rank has 2^27 parameters: 256 MiB of them, and 1.5 GiB of states. With 8 GiB available all of that stays in memory;
// of 1 GiB, less what the other rank takes, a part does.
TEST(IdleMemory, BecomesAHomeWithTheBudgetThatIsNamed) {
  for (const OffloadDevice parameters : {OffloadDevice::cpu, OffloadDevice::nvme}) {
    Config config = config_of_nvme(parameters);
    const MemoryPlan plan = plan_of(config);
    const ByteCount moving = plan.disk_shards + plan.disk_tiles - plan.homes();
    for (const ByteCount available : {16_GiB, 2_GiB}) {
      const std::string note = note_with(available, config);
      Config roomy = config;
      roomy.penstock.host_budget = budget_in(note);
      const MemoryPlan with_it = plan_of(roomy);

      const ByteCount more = with_it.host_allocated() - plan.host_allocated();
      EXPECT_LE(more * 2, available / 4 * 3) << note;
      const ByteCount kept = with_it.homes() - plan.homes();
      EXPECT_NE(note.find(to_string(kept) + " of the " + to_string(moving)), std::string::npos) << note;
      EXPECT_EQ(with_it.homes() == plan.disk_shards + plan.disk_tiles, available == 16_GiB) << note;
      EXPECT_EQ(note_with(available, roomy), "") << "a budget is given";

      config.penstock.memory_reserve = available;
      EXPECT_EQ(note_with(available, config), "") << "it is for others";
      config.penstock.memory_reserve = {};
    }
  }
}

TEST(IdleMemory, IsNotWorthANoteWhereItChangesLittle) {
  const Config config = config_of_nvme(OffloadDevice::cpu);
  EXPECT_EQ(note_with(128_MiB, config), "") << "96 MiB are too few";
  EXPECT_EQ(note_with(8_GiB, config, 1 << 20), "") << "little moves";
  Config in_memory = config;
  in_memory.offload_optimizer = {.device = OffloadDevice::cpu};
  EXPECT_EQ(note_with(8_GiB, in_memory), "") << "nothing moves";
}

}  // namespace
}  // namespace penstock::zero
