#include "kit/cluster.hpp"
#include "kit/scratch_directory.hpp"
#include "kit/trainer.hpp"
#include "run_penstock.hpp"
#include "zero/commit/rank_directory.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::zero::test {
namespace {

using penstock::test::run_penstock;
using penstock::test::ScratchDirectory;

constexpr std::uint32_t ranks = 2, steps = 3;

/// A run of two ranks with a commit after three steps, the client's bytes with it.
class DurableCommands : public testing::Test {
 protected:
  void SetUp() override { commit_after(steps); }
  void commit_after(std::uint32_t step) const {
    RunOptions options{.ranks = ranks, .steps = step};
    options.config.offload_optimizer.device = OffloadDevice::nvme;
    make_durable(options, {directory()}, Commits::at_once);
    options.without_leases = {};  // one commit
    options.after_steps = [](Engine& engine) -> Result<void> {
      PENSTOCK_TRY(engine.commit(std::as_bytes(std::span("epoch 7", 7))));
      return ok();
    };
    const RunResult run = train(options);
    ASSERT_FALSE(run.error) << run.error->message();
  }
  std::string directory() const { return (scratch_.path() / "run").string(); }
  /// Of rank 1.
  std::filesystem::path file_of_rank(const std::string& beginning) const {
    for (const auto& entry : std::filesystem::directory_iterator(directory() + "/rank0001")) {
      if (entry.path().filename().string().starts_with(beginning)) return entry.path();
    }
    ADD_FAILURE() << beginning;
    return {};
  }

 private:
  ScratchDirectory scratch_;
};

/// Changes every byte of the file from `offset` on.
void overwrite(const std::filesystem::path& path, std::uint64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  std::string bytes(std::filesystem::file_size(path) - offset, '\0');
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  std::transform(bytes.begin(), bytes.end(), bytes.begin(),
                 [](char byte) { return static_cast<char>(byte ^ 0x55); });
  file.seekp(static_cast<std::streamoff>(offset));
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

TEST_F(DurableCommands, InspectPrintsTheCommit) {
  const auto json = run_penstock({"inspect", "--json", directory()}).json();
  const auto text = run_penstock({"inspect", directory()});

  ASSERT_EQ(json["commits"].size(), 1u) << json;
  const Json::Value& commit = json["commits"][0];
  EXPECT_TRUE(commit["complete"].asBool()) << commit;
  EXPECT_EQ(commit["step"].asUInt(), steps);
  EXPECT_EQ(commit["ranks"].asUInt(), ranks);
  EXPECT_EQ(commit["client_bytes"][1].asUInt(), 7u);
  EXPECT_GT(commit["tensors"].asUInt(), 0u);
  EXPECT_GE(commit["state_bytes"].asUInt64(), 12 * commit["elements"].asUInt64());
  for (const Json::Value& file : commit["files"])
    EXPECT_TRUE(std::filesystem::exists(file.asString())) << file;
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_NE(text.out.find("step 3, 0 skipped; 2 of 2 ranks"), std::string::npos) << text.out;
}

TEST_F(DurableCommands, VerifyReadsEveryTensor) {
  const auto inspected = run_penstock({"inspect", "--json", directory()}).json();
  const auto verified = run_penstock({"verify", "--json", directory()});

  EXPECT_EQ(verified.status, 0) << verified.err;
  const Json::Value row = verified.json()[0];
  EXPECT_EQ(row["tensors"], inspected["commits"][0]["tensors"]);
  EXPECT_EQ(row["damaged"].asUInt(), 0u);
  EXPECT_EQ(row["bytes"].asUInt64(), inspected["commits"][0]["state_bytes"].asUInt64() +
                                         inspected["commits"][0]["parameter_bytes"].asUInt64());
}

TEST_F(DurableCommands, VerifyNamesWhatIsDamaged) {
  const auto swap = file_of_rank("swap");
  overwrite(swap, 0);

  const auto verified = run_penstock({"verify", directory()});

  EXPECT_EQ(verified.status, 1) << verified.out;
  EXPECT_NE(verified.err.find(swap.string()), std::string::npos) << verified.err;
  EXPECT_NE(verified.out.find("tensors are damaged"), std::string::npos) << verified.out;
}

TEST_F(DurableCommands, ADamagedManifestIsNamed) {
  const auto manifest = file_of_rank("engine0-");
  overwrite(manifest, 40);

  for (const char* command : {"inspect", "verify"}) {
    const auto result = run_penstock({command, directory()});
    EXPECT_EQ(result.status, 1) << result.out;
    EXPECT_NE(result.err.find(manifest.string()), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("no part of rank 1"), std::string::npos) << result.err;
  }
}

TEST_F(DurableCommands, ACommitThatAKilledRunHasBegunIsNoDamage) {
  const auto manifest = file_of_rank("engine0-");
  auto unfinished = RankDirectory::read_of({.directories = {directory()}}, 1, 0, 1).value();
  unfinished.generation = 2;
  unfinished.attempt += 1;
  ASSERT_TRUE(RankDirectory::open({.directories = {directory()}, .rank = 1}).value()->write(unfinished));

  const auto verified = run_penstock({"verify", "--json", directory()});
  const auto inspected = run_penstock({"inspect", directory()});

  EXPECT_EQ(verified.status, 0) << verified.err;
  ASSERT_EQ(verified.json().size(), 1u);
  EXPECT_EQ(verified.json()[0]["generation"].asUInt(), 1u);
  EXPECT_EQ(inspected.status, 0) << inspected.err;
  EXPECT_NE(inspected.out.find("not used: a run continues from commit 1"), std::string::npos)
      << inspected.out;
}

TEST_F(DurableCommands, AMissingPartIsNamed) {
  std::filesystem::remove_all(directory() + "/rank0001");

  for (const char* command : {"inspect", "verify", "export"}) {
    std::vector<std::string> words = {command, directory()};
    if (words[0] == "export") words.push_back(directory() + "/out");
    const auto result = run_penstock(words);
    EXPECT_EQ(result.status, 1) << result.out;
    EXPECT_NE(result.err.find("commit 1 of 2 ranks has no part of rank 1"), std::string::npos) << result.err;
  }
}

TEST_F(DurableCommands, AnOlderCommitIsNotUsedWhereTheLastHasLostAPart) {
  std::filesystem::copy(directory() + "/rank0000", directory() + "/rank0000.old",
                        std::filesystem::copy_options::recursive);
  commit_after(steps + 1);
  std::filesystem::remove_all(directory() + "/rank0000");
  std::filesystem::rename(directory() + "/rank0000.old", directory() + "/rank0000");

  for (const char* command : {"inspect", "verify", "export"}) {
    std::vector<std::string> words = {command, directory()};
    if (words[0] == "export") words.push_back(directory() + "/out");
    const auto result = run_penstock(words);
    EXPECT_EQ(result.status, 1) << result.out;
    EXPECT_NE(result.err.find("commit 2 of 2 ranks has no part of rank 0, which has commit 1"),
              std::string::npos)
        << result.err;
  }
}

TEST_F(DurableCommands, DirectoriesOfTwoRunsAreRefused) {
  const ScratchDirectory other;
  std::filesystem::copy(directory(), other.path() / "run", std::filesystem::copy_options::recursive);

  for (const char* command : {"inspect", "verify"}) {
    const auto result = run_penstock({command, directory(), (other.path() / "run").string()});
    EXPECT_EQ(result.status, 2) << result.out;
    EXPECT_NE(result.err.find("a run of its own"), std::string::npos) << result.err;
  }
}

TEST_F(DurableCommands, ACheckpointIsFoundByLatest) {
  const ScratchDirectory other;
  std::filesystem::copy(directory(), other.path() / "global_step3", std::filesystem::copy_options::recursive);
  std::ofstream(other.path() / "latest") << "global_step3";

  for (const char* command : {"inspect", "verify"}) {
    const auto result = run_penstock({command, other.path().string()});
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_NE(result.out.find("commit 1 of engine 0"), std::string::npos) << result.out;
  }
}

TEST_F(DurableCommands, ARunThatGoesOnIsNoDamage) {
  RunOptions options{.ranks = ranks, .micro_batches = 1, .steps = 4000};
  options.config.offload_optimizer.device = OffloadDevice::nvme;
  options.config.penstock.durable_directories = {directory()};
  options.begins_where_restored = true;
  options.restore = [](Engine& engine) -> Result<void> {
    PENSTOCK_TRY(engine.resume());
    return ok();
  };
  std::atomic<bool> ends = false;
  std::atomic<std::size_t> commits = 0;
  options.without_leases = [&](Engine& engine, const RunOptions::ProgramPoint& point) -> Result<void> {
    if (point.unit != 0 || point.place != RunOptions::ProgramPoint::Place::forward) return ok();
    if (ends) return Error(ErrorCode::failed_state, "the test").reason("ends");
    PENSTOCK_TRY(engine.commit());
    ++commits;
    return ok();
  };
  std::thread run([&] { (void)train(options); });
  for (int i = 0; i < 150; ++i) {
    EXPECT_EQ(run_penstock({"inspect", directory()}).status, 0);
    const auto verified = run_penstock({"verify", directory()});
    const bool is_replaced =
        verified.err.find("has replaced the commit while it was read") != std::string::npos;
    EXPECT_EQ(verified.status == 0, !is_replaced) << verified.err;
  }
  ends = true;
  run.join();
  EXPECT_EQ(run_penstock({"verify", directory()}).status, 0);
  EXPECT_GT(commits, 20u);
}

TEST_F(DurableCommands, ADirectoryWithoutACommitIsRefused) {
  const ScratchDirectory empty;
  const std::string file = empty.path().string() + "/file";
  std::ofstream(file) << "x";
  for (const std::string& directory : {empty.path().string(), empty.path().string() + "/missing", file}) {
    for (const char* command : {"inspect", "verify"}) {
      const auto result = run_penstock({command, directory});
      EXPECT_EQ(result.status, 2) << result.out;
      EXPECT_NE(result.err.find(directory), std::string::npos) << result.err;
    }
  }
}

}  // namespace
}  // namespace penstock::zero::test
