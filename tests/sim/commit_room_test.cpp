// A durable run has room in its swap files for two versions of its states, whatever the lengths of its tiles.
#include "kit/scratch_directory.hpp"
#include "sim/one_rank.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <cstdint>
#include <filesystem>
#include <string>

namespace penstock::zero::test {
namespace {

using penstock::test::ScratchDirectory;

ModelLayout units_of_many_sizes() {
  ModelLayout model;
  for (const std::uint64_t elements : {98'304u, 1'536u, 460'800u, 300u, 307'200u, 1'024u, 65'536u, 64u}) {
    const std::string name = "unit " + std::to_string(model.units.size());
    model.units.push_back({.name = name, .parameters = {{"weight", ElementCount(elements), 0}}});
  }
  return model;
}

/// What the swap file takes of the disk.
ByteCount on_disk(const std::filesystem::path& directory) {
  struct stat status {};
  EXPECT_EQ(::stat((directory / "run" / "rank0000" / "swap0").c_str(), &status), 0);
  return ByteCount(512) * static_cast<std::uint64_t>(status.st_blocks);
}

/// Commits after each step, in several processes.
void expect_room(Config config, const std::filesystem::path& directory) {
  std::string expected;
  for (std::uint64_t process = 0; process < 3; ++process) {
    const OneRank run = OneRank::create(config, units_of_many_sizes()).value();
    if (process == 0) {
      run.initialize();
    } else {
      ASSERT_EQ(run.engine().resume().value()->step, process * 5);
      EXPECT_EQ(run.engine().digest().value(), expected);
    }
    for (int step = 0; step < 5; ++step) {
      run.train();
      const auto committed = run.engine().commit();
      ASSERT_TRUE(committed) << committed.error().message();
    }
    expected = run.engine().digest().value();
    for (const std::string& note : run.rank->notes())
      EXPECT_EQ(note.find("the file has holes"), std::string::npos) << note;
    EXPECT_LE(on_disk(directory), run.rank->plan().swap_bytes + 2_MiB) << "process " << process;
  }
}

TEST(CommitRoom, IsThatOfTwoVersionsWhateverTheLengthsOfTiles) {
  for (const OffloadDevice parameters : {OffloadDevice::none, OffloadDevice::nvme}) {
    for (const std::uint64_t tile_elements : {16'384u, 262'144u}) {
      SCOPED_TRACE(testing::Message() << "parameters on disk " << (parameters == OffloadDevice::nvme)
                                      << ", tiles of " << tile_elements);
      const ScratchDirectory scratch;
      Config config = durable_config(scratch.path());
      config.offload_param = config.offload_optimizer;
      config.offload_param.device = parameters;
      config.penstock.tile_elements = ElementCount(tile_elements);
      expect_room(config, scratch.path());
    }
  }
}

}  // namespace
}  // namespace penstock::zero::test
