#include "kit/scratch_directory.hpp"
#include "run_penstock.hpp"

#include <penstock/swap/access_trace.hpp>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace penstock::test {
namespace {

class TraceCommand : public testing::Test {
 protected:
  TraceCommand() {
    std::ofstream(file("config"))
        << R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 3,
      "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "."},
      "offload_optimizer": {"device": "nvme", "nvme_path": "."}}})";
    std::ofstream(file("model")) << R"({"units": [
      {"name": "first", "parameters": [{"name": "w", "shape": [64, 64]}]},
      {"name": "second", "parameters": [{"name": "w", "shape": [64, 64]}]}]})";
  }
  [[nodiscard]] std::string file(const char* name) const { return (scratch_.path() / name).string(); }
  [[nodiscard]] ProgramResult derive(const char* to, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"trace",       "derive",   file(to),      "--model",
                                          file("model"), "--config", file("config")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_penstock(arguments);
  }
  [[nodiscard]] ProgramResult diff(const char* wanted, const char* got) const {
    return run_penstock({"trace", "diff", file(wanted), file(got)});
  }

 private:
  ScratchDirectory scratch_;
};

TEST_F(TraceCommand, HasTheHomesOfARankInTheMemoryOfItsNumaNode) {
  std::ofstream(file("config")) << R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3,
      "offload_param": {"device": "nvme", "nvme_path": "."}},
      "penstock": {"node_budgets": [53248, 67108864], "rank_nodes": [0, 1]}})";
  const auto homes = [&](const char* rank) {
    const auto derived = derive("trace", {"--gpus", "2", "--rank", rank});
    EXPECT_EQ(derived.status, 0) << derived.err;
    const swap::AccessTrace trace = swap::load_trace(file("trace")).value();
    return std::count_if(trace.tensors.begin(), trace.tensors.end(),
                         [](const auto& tensor) { return tensor.home_in_memory; });
  };

  EXPECT_EQ(homes("0"), 0);
  EXPECT_EQ(homes("1"), 2);
}

TEST_F(TraceCommand, SavesTheUsesOfAStepOfAModel) {
  const auto result = derive("trace");

  EXPECT_EQ(result.status, 0) << result.err;
  const auto trace = swap::load_trace(file("trace"));
  ASSERT_TRUE(trace) << trace.error().message();
  EXPECT_EQ(result.out, std::to_string(trace->uses.size()) + " uses of " +
                            std::to_string(trace->tensors.size()) + " tensors\n");
  std::size_t shards = 0, gradients = 0, tiles = 0;
  for (const auto& use : trace->uses) {
    const tiers::Purpose purpose = trace->tensors[use.tensor].purpose;
    shards += purpose == tiers::Purpose::parameter_shard && use.access == swap::Access::read;
    gradients += purpose == tiers::Purpose::gradient_shard && use.access == swap::Access::modify;
    tiles += purpose == tiers::Purpose::optimizer_tile && use.access == swap::Access::modify;
  }
  EXPECT_GE(shards, 2u);
  EXPECT_EQ(gradients, 4u) << "the second and the third of three micro-batches, of two units";
  EXPECT_EQ(tiles, 2u);
}

TEST_F(TraceCommand, WaitsForNoWriterOfAPipe) {
  ASSERT_EQ(::mkfifo(file("pipe").c_str(), 0600), 0);
  const auto derived = derive("pipe");
  EXPECT_EQ(derived.status, 2);
  EXPECT_NE(derived.err.find("a pipe"), std::string::npos) << derived.err;
  EXPECT_EQ(run_penstock({"config", "check", file("pipe")}).status, 2);
  EXPECT_EQ(diff("pipe", "pipe").status, 2);
}

TEST_F(TraceCommand, PrintsTheFirstDifference) {
  ASSERT_EQ(derive("one").status, 0);
  ASSERT_EQ(derive("same").status, 0);
  ASSERT_EQ(derive("other", {"--accumulate-by-layer"}).status, 0);

  const auto same = diff("one", "same"), other = diff("one", "other");

  EXPECT_EQ(same.status, 0) << same.err;
  EXPECT_EQ(same.out.find("the same "), 0u) << same.out;
  EXPECT_EQ(same.out.find("elsewhere"), std::string::npos) << same.out;
  EXPECT_EQ(other.status, 1);
  EXPECT_EQ(other.out.find("use "), 0u) << other.out;
  EXPECT_NE(other.out.find("wanted "), std::string::npos) << other.out;
}

TEST_F(TraceCommand, SaysWhereTheSameUsesMoveOtherBytes) {
  ASSERT_EQ(derive("one").status, 0);
  std::ifstream stream(file("one"));
  std::string text{std::istreambuf_iterator<char>(stream), {}};
  const std::string on_disk = " disk,write_behind,dropped optimizer_tiles";
  ASSERT_NE(text.find(on_disk), std::string::npos) << text;
  std::ofstream(file("other")) << text.replace(text.find(on_disk), on_disk.size(), " memory optimizer_tiles");

  const auto result = diff("one", "other");

  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("kept elsewhere, first \"first optimizer tile 0\""), std::string::npos)
      << result.out;
}

TEST_F(TraceCommand, RefusesARankThatTheRunDoesNotHave) {
  const auto result = derive("trace", {"--gpus", "2", "--rank", "2"});

  EXPECT_EQ(result.status, 2);
  EXPECT_NE(result.err.find("--rank"), std::string::npos) << result.err;
  EXPECT_FALSE(std::filesystem::exists(file("trace")));
  EXPECT_EQ(derive("trace", {"--gpus", "2", "--rank", "1"}).status, 0);
}

TEST_F(TraceCommand, DoesNotReplaceWhatItReads) {
  for (const char* const input : {"config", "model"}) {
    const auto size = std::filesystem::file_size(file(input));
    const auto result = derive(input);
    EXPECT_EQ(result.status, 2) << input;
    EXPECT_NE(result.err.find("wanted a new file, or a trace"), std::string::npos) << result.err;
    EXPECT_EQ(std::filesystem::file_size(file(input)), size);
  }
  for (int i = 0; i < 2; ++i) EXPECT_EQ(derive("new, then a trace").status, 0);
}

TEST_F(TraceCommand, SaysThatUpdatesInTheBackwardHaveNoFixedOrder) {
  EXPECT_EQ(derive("trace").err.find("update_in_backward"), std::string::npos);
  std::ofstream(file("config"))
      << R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0, "penstock": {"update_in_backward": true},
      "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "."},
      "offload_optimizer": {"device": "nvme", "nvme_path": "."}}})";
  const auto result = derive("trace");
  EXPECT_EQ(result.status, 0);
  EXPECT_NE(result.err.find("note: penstock.update_in_backward"), std::string::npos) << result.err;
}

TEST_F(TraceCommand, HasTheUsesOfCheckpointsWhereTheyAreAskedFor) {
  std::string units;
  for (int unit = 0; unit < 8; ++unit) {
    units +=
        R"({"name": ")" + std::to_string(unit) + R"(", "parameters": [{"name": "w", "shape": [64, 64]}]},)";
  }
  units.pop_back();
  std::ofstream(file("model")) << R"({"checkpoints": {"count": 8, "size": "64KiB"}, "units": [)" << units
                               << "]}";
  const auto uses_of_checkpoints = [&](const char* name) {
    std::size_t uses = 0;
    const auto trace = swap::load_trace(file(name)).value();
    for (const auto& use : trace.uses)
      uses += trace.tensors[use.tensor].purpose == tiers::Purpose::checkpoint;
    return uses;
  };

  const auto without = derive("without"), with = derive("with", {"--checkpoints"});

  EXPECT_EQ(without.status, 0) << without.err;
  EXPECT_NE(without.err.find("note: checkpoints: "), std::string::npos) << without.err;
  EXPECT_EQ(uses_of_checkpoints("without"), 0u);
  EXPECT_EQ(with.status, 0) << with.err;
  EXPECT_EQ(with.err.find("note: checkpoints: "), std::string::npos) << with.err;
  const auto trace = swap::load_trace(file("with")).value();
  const auto leaving = static_cast<std::size_t>(
      std::ranges::count(trace.tensors, tiers::Purpose::checkpoint, &swap::AccessTrace::Tensor::purpose));
  EXPECT_GE(leaving, 4u) << "of eight";
  EXPECT_EQ(uses_of_checkpoints("with"), leaving * 2 * 3) << "written and read, in three micro-batches";
  for (const std::vector<std::string>& others :
       {std::vector<std::string>{"--recompute-together", "2"}, {"--accumulate-by-layer"}}) {
    std::vector<std::string> both = others;
    both.push_back("--checkpoints");
    EXPECT_EQ(derive("refused", both).status, 2);
  }
}

TEST_F(TraceCommand, SaysThatThereAreNoCheckpoints) {
  const auto result = derive("trace", {"--checkpoints"});
  EXPECT_EQ(result.status, 0);
  EXPECT_NE(result.err.find("no checkpoints that leave the device"), std::string::npos) << result.err;
}

TEST_F(TraceCommand, RefusesWhatIsNoTrace) {
  ASSERT_EQ(derive("trace").status, 0);
  for (const auto& [wanted, got] : {std::pair("trace", "config"), {"config", "trace"}, {"trace", "none"}}) {
    const auto result = diff(wanted, got);
    EXPECT_EQ(result.status, 2);
    EXPECT_NE(result.err.find("error"), std::string::npos) << result.err;
    EXPECT_EQ(result.out, "");
  }
}

}  // namespace
}  // namespace penstock::test
