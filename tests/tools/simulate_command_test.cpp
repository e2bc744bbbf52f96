#include "kit/scratch_directory.hpp"
#include "run_penstock.hpp"

#include <penstock/swap/access_trace.hpp>

#include <gtest/gtest.h>
#include <fstream>

namespace penstock::test {
namespace {

using swap::Access;

class SimulateCommand : public testing::Test {
 protected:
  SimulateCommand() {
    swap::AccessTrace trace{.label = "train"};
    for (std::uint32_t i = 0; i < 2; ++i) {
      trace.tensors.push_back(
          {.name = "tile " + std::to_string(i), .size = 1_MiB, .purpose = tiers::Purpose::optimizer_tile});
      trace.uses.push_back({i, Access::modify});
    }
    save_trace(trace, file("trace")).value();
    // A tile is read in 1 s, written in 2 s and updated in 0.5 s.
    std::ofstream(file("machine")) << R"({"disk": {"read": "1 MiB", "write": "0.5 MiB", "mixed": "0.5 MiB",
      "endurance": "1 GiB"}, "use": {"optimizer_tiles": "2 MiB"}})";
  }
  [[nodiscard]] std::string file(const char* name) const { return (scratch_.path() / name).string(); }
  [[nodiscard]] ProgramResult run(std::vector<std::string> more) const {
    std::vector<std::string> arguments = {"simulate", file("trace"), "--machine", file("machine")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_penstock(arguments);
  }

 private:
  ScratchDirectory scratch_;
};

TEST_F(SimulateCommand, PrintsWhatAStepTakesAndWhatWouldHelp) {
  const auto result = run({"--host-budget", "1MiB"});

  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* said : {"trace train: 2 uses of 2 tensors, 2.0 MiB; host budget 1.0 MiB, planned",
                           "time                    5.000 s      7.000 s  100 %",
                           "waits for room        2.000 s      4.000 s  57 %",
                           "limiting resource: the disk, busy for 86 % of a step",
                           "the endurance of the disk, 1.0 GiB, is 512 such steps",
                           "disks twice as fast                         4.000 s  -43 %"})
    EXPECT_NE(result.out.find(said), std::string::npos) << said << " in\n" << result.out;
}

TEST_F(SimulateCommand, PrintsJson) {
  const auto result =
      run({"--host-budget", "1MiB", "--json", "--lookahead", "0", "--eviction", "lru", "--steps", "2"});

  EXPECT_EQ(result.status, 0) << result.err;
  const Json::Value json = result.json();
  EXPECT_DOUBLE_EQ(json["steady"]["seconds"].asDouble(), 7);
  EXPECT_EQ(json["steady"]["read"].asUInt64(), 2u << 20);
  EXPECT_EQ(json["limiting_resource"]["what"], "the disk");
  EXPECT_DOUBLE_EQ(json["limiting_resource"]["busy"].asDouble(), 6);
  EXPECT_EQ(json["changes"][0]["what"], "disks twice as fast");
  EXPECT_DOUBLE_EQ(json["steps_of_endurance"].asDouble(), 512);
}

TEST_F(SimulateCommand, PrintsEachDisk) {
  std::ofstream(file("machine")) << R"({"disk": {"read": "1 MiB", "write": "0.5 MiB", "mixed": "0.5 MiB",
      "endurance": "1 GiB", "count": 2}, "use": {"optimizer_tiles": "2 MiB"}})";
  const auto result = run({"--host-budget", "1MiB"}), as_json = run({"--host-budget", "1MiB", "--json"});

  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* said : {"disk 1 busy             3.000 s      3.000 s  43 %", "disk 2 busy",
                           "limiting resource: disk 1, busy for 43 % of a step",
                           "the endurance of disk 1, 1.0 GiB, is 1.02e+03 such steps"})
    EXPECT_NE(result.out.find(said), std::string::npos) << said << " in\n" << result.out;
  const Json::Value disks = as_json.json()["steady"]["disks"];
  ASSERT_EQ(disks.size(), 2u);
  EXPECT_EQ(disks[1]["written"].asUInt64(), 1u << 20);
  EXPECT_DOUBLE_EQ(disks[1]["busy"].asDouble(), 3);
}

// A tile is updated in 0.5 s: not beside stores where none may be pending.
TEST_F(SimulateCommand, BeginsATileOfAnUpdateWithSoManyStoresPending) {
  swap::AccessTrace trace;
  trace.label = "train";
  trace.tensors.push_back({.name = "gradient", .size = 1_MiB, .purpose = tiers::Purpose::gradient_shard});
  trace.tensors.back().on_disk = false;
  trace.uses = {{0, Access::overwrite}, {0, Access::read}};
  for (std::uint32_t i = 1; i <= 8; ++i) {
    trace.tensors.push_back({.name = "tile " + std::to_string(i),
                             .size = 1_MiB,
                             .purpose = tiers::Purpose::optimizer_tile,
                             .write_behind = true,
                             .retain = false});
    trace.uses.push_back({i, Access::modify});
  }
  save_trace(trace, file("trace")).value();
  std::ofstream(file("machine")) << R"({"disk": {"read": "1 MiB", "write": "0.5 MiB", "mixed": "1.5 MiB"},
      "use": {"optimizer_tiles": "2 MiB"}})";
  const auto seconds = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--host-budget", "16MiB", "--json"});
    const auto result = run(more);
    EXPECT_EQ(result.status, 0) << result.err;
    return result.json()["steady"]["seconds"].asDouble();
  };
  EXPECT_GT(seconds({"--stores-max", "0"}), seconds({}) + 8 * 0.5);
}

// The tile is read and updated beside the second unit's backward, or after it beside nothing.
TEST_F(SimulateCommand, UpdatesATraceInItsBackwardWhereItIsAsked) {
  EXPECT_NE(run({"--host-budget", "16MiB", "--update-in-backward"}).err.find("reads a gradient"),
            std::string::npos);
  swap::AccessTrace trace;
  trace.label = "train";
  for (std::uint32_t i = 0; i < 2; ++i) {
    trace.tensors.push_back({.name = "gradient " + std::to_string(i),
                             .size = 8_MiB,
                             .purpose = tiers::Purpose::gradient_shard,
                             .on_disk = false});
    trace.tensors.push_back({.name = "tile " + std::to_string(i),
                             .size = 1_MiB,
                             .purpose = tiers::Purpose::optimizer_tile,
                             .write_behind = true,
                             .retain = false});
  }
  trace.uses = {{2, Access::overwrite}, {0, Access::overwrite}, {0, Access::read},
                {1, Access::modify},    {2, Access::read},      {3, Access::modify}};
  save_trace(trace, file("trace")).value();
  std::ofstream(file("machine")) << R"({"disk": {"read": "1 MiB", "write": "1 MiB", "mixed": "1 MiB"},
      "use": {"gradient_shards": "1 MiB", "optimizer_tiles": "0.5 MiB"}})";
  const auto seconds = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--host-budget", "32MiB", "--json"});
    const auto result = run(more);
    EXPECT_EQ(result.status, 0) << result.err;
    return result.json()["steady"]["seconds"].asDouble();
  };
  const double after = seconds({}), beside = seconds({"--update-in-backward"});
  EXPECT_DOUBLE_EQ(after, 16 + 4);  // the next step's gradients wait for both tiles
  EXPECT_DOUBLE_EQ(beside, 16 + 2);
}

TEST_F(SimulateCommand, NamesTheRangeOfANumber) {
  const auto expect_refused = [&](const char* option, const char* value, const char* said) {
    const auto result = run({"--host-budget", "1MiB", option, value});
    EXPECT_EQ(result.status, 2);
    EXPECT_NE(result.err.find(said), std::string::npos) << result.err;
  };
  expect_refused("--stores-max", "-1", "not in range 0 to 4096");
  expect_refused("--dropped-ahead", "5000", "not in range 0 to 4096");
  expect_refused("--lookahead", "much", "wanted a whole number of bytes from 0 B to 16384 PiB");
  EXPECT_EQ(run({"--host-budget", "1MiB", "--lookahead", "0 MiB"}).status, 0);
  const auto fraction = run({"--host-budget", "1.5"});
  EXPECT_EQ(fraction.status, 2);
  EXPECT_NE(fraction.err.find("--host-budget"), std::string::npos) << fraction.err;
}

class SimulateModel : public SimulateCommand {
 protected:
  SimulateModel() {
    std::ofstream(file("node"))
        << R"({"disk": {"read": "6 GB", "write": "4 GB", "mixed": "5 GB"}, "update": "20 GB",
      "device": {"flops": 1e14, "link": "20 GB", "host_copy": "12 GB"}})";
    std::ofstream(file("config"))
        << R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
      "bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "zero_optimization": {
        "stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/nvme"},
        "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"}}})";
  }
  [[nodiscard]] ProgramResult run(std::vector<std::string> more) const {
    std::vector<std::string> arguments = {"simulate",     "--model",   "gpt2",       "--config",
                                          file("config"), "--machine", file("node"), "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_penstock(arguments);
  }
};

TEST_F(SimulateModel, NotesWhichRankItIsWhereBudgetsDiffer) {
  std::ofstream(file("config"))
      << R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {
        "stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"}},
      "penstock": {"node_budgets": [17179869184, 536870912], "rank_nodes": [0, 1]}})";

  const auto simulated = run({"--tokens", "1024", "--gpus", "2"});

  ASSERT_EQ(simulated.status, 0) << simulated.err;
  EXPECT_NE(simulated.err.find("the rank of a node that has the least host memory"), std::string::npos);
  EXPECT_GT(simulated.json()["steady"]["written"].asDouble(), 0.0);
}

TEST_F(SimulateModel, PrintsWhatItsStepsTake) {
  const auto one = run({"--tokens", "1024"});
  ASSERT_EQ(one.status, 0) << one.err;
  const Json::Value json = one.json();
  const double seconds = json["steady"]["seconds"].asDouble();
  EXPECT_NEAR(json["tokens_per_second"].asDouble(), 2 * 1024 / seconds, 1e-6 * 2048 / seconds);
  EXPECT_NEAR(json["tflops_per_rank"].asDouble(), 6 * 124439808.0 * 2048 / seconds / 1e12, 1e-3);
  // Twelve bytes of states a parameter are read and written.
  EXPECT_GE(json["steady"]["written"].asDouble(), 12 * 124439808.0);

  const auto recomputed = run({"--tokens", "65536", "--recompute"}), kept = run({"--tokens", "65536"});
  EXPECT_GT(recomputed.json()["steady"]["used"].asDouble(), 1.2 * kept.json()["steady"]["used"].asDouble());
  const auto used = [&](const char* memory) {
    const auto result = run({"--tokens", "65536", "--memory-device", memory});
    EXPECT_EQ(result.status, 0) << result.err;
    return result.json()["steady"]["used"].asDouble();
  };
  const double all_kept = used("1 TiB"), some_kept = used("60 GiB");
  EXPECT_DOUBLE_EQ(all_kept, kept.json()["steady"]["used"].asDouble());
  EXPECT_GT(some_kept, 1.02 * all_kept);
  EXPECT_LT(some_kept, 0.99 * recomputed.json()["steady"]["used"].asDouble());
  const auto four = run({"--tokens", "1024", "--gpus", "4", "--nodes", "2"});
  EXPECT_LT(four.json()["steady"]["written"].asDouble(), json["steady"]["written"].asDouble() / 7);
  const auto kept_in_memory = run({"--tokens", "1024", "--host-budget", "8 GiB"});
  EXPECT_LT(kept_in_memory.json()["steady"]["written"].asDouble(), json["steady"]["written"].asDouble());
}

// gpt2 has 12 blocks of width 768 in bf16; three of their inputs stay on the device. The plans differ in what else is
// in host memory, so that of two micro-batches the bytes are those of one at least.
TEST_F(SimulateModel, OffloadsActivations) {
  const auto recomputed = run({"--tokens", "16384", "--recompute"}),
             offloaded = run({"--tokens", "16384", "--offload-activations"});
  EXPECT_EQ(offloaded.status, 0) << offloaded.err;
  const auto written = [](const ProgramResult& result) {
    return result.json()["steady"]["written"].asUInt64();
  };
  EXPECT_GT(written(offloaded), written(recomputed) + 16384 * 768 * 2 * (12 - 3));
}

// What many micro-batches take is computed from fewer of them, and these must have settled.
TEST_F(SimulateModel, CountsManyMicroBatches) {
  double read = 0, seconds = 0;
  for (const char* count : {"8", "16", "40"}) {
    std::ofstream(file("config"))
        << R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "optimizer": {"type": "AdamW"},
               "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/nvme"},
               "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"}}, "gradient_accumulation_steps": )"
        << count << "}";
    const auto result = run_penstock({"simulate", "--model", "gpt2", "--config", file("config"), "--machine",
                                      file("node"), "--tokens", "1024", "--json"});
    EXPECT_EQ(result.status, 0) << result.err;
    const Json::Value steady = result.json()["steady"];
    const auto value = [&](const char* name) { return steady[name].asDouble(); };
    EXPECT_NEAR(
        value("used") + value("waited_for_loads") + value("waited_for_room") + value("waited_for_update"),
        value("seconds"), 0.01 * value("seconds"))
        << count;
    EXPECT_GE(value("read"), 0.99 * read) << count;
    EXPECT_GT(value("seconds"), seconds) << count;
    read = value("read");
    seconds = value("seconds");
  }
}

TEST_F(SimulateModel, PrintsTokensAndOperations) {
  const auto result = run_penstock({"simulate", "--model", "gpt2", "--config", file("config"), "--machine",
                                    file("node"), "--tokens", "1024"});
  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* said : {"tokens/s", "TFLOPS a rank", "waits for update", "update beside"})
    EXPECT_NE(result.out.find(said), std::string::npos) << said << " in\n" << result.out;
}

TEST_F(SimulateModel, RefusesWhatItCannotUse) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{}, "--tokens"},
      {{"--tokens", "0"}, "--tokens"},
      {{"--tokens", "1024", "--lookahead", "1MiB"}, "--lookahead"},
      {{"--tokens", "1024", "--eviction", "lru"}, "--eviction"},
      {{"--tokens", "1024", file("trace")}, "trace"},
      {{"--tokens", "1024", "--host-budget", "1MiB"}, "budget is too small"},
      {{"--tokens", "1024", "--memory-device", "1 MiB"}, "activations"},
      {{"--tokens", "1024", "--memory-device", "much"}, "--memory-device"},
      {{"--tokens", "1024", "--memory-device", "1 GiB", "--recompute"}, "--recompute"},
      {{"--tokens", "1024", "--offload-activations", "--recompute"}, "--recompute"},
      {{"--tokens", "1024", "--nodes", "0"}, "--nodes"}};
  for (const auto& [more, said] : cases) {
    const auto result = run(more);
    EXPECT_NE(result.status, 0) << said;
    EXPECT_NE(result.err.find(said), std::string::npos) << said << " in\n" << result.err;
  }
  std::ofstream(file("layout"))
      << R"({"units": [{"name": "one", "parameters": [{"name": "w", "shape": [64]}]}]})";
  const auto no_preset =
      run_penstock({"simulate", "--model", file("layout"), "--config", file("config"), "--machine",
                    file("node"), "--tokens", "1024", "--offload-activations"});
  EXPECT_NE(no_preset.err.find("--offload-activations"), std::string::npos) << no_preset.err;
  const auto bare = run_penstock({"simulate", "--model", "gpt2", "--config", file("config"), "--machine",
                                  file("machine"), "--tokens", "1024"});
  EXPECT_NE(bare.err.find("device.flops"), std::string::npos) << bare.err;
  EXPECT_NE(bare.err.find("where   " + file("machine")), std::string::npos) << bare.err;
  std::ofstream(file("node"))
      << R"({"disk": {"read": "6 GB", "write": "4 GB", "mixed": "5 GB"}, "update": "20 GB",
      "device": {"flops": 1e14, "memory": "40 GB"}})";
  const auto larger = run({"--tokens", "1024", "--memory-device", "41 GB"});
  EXPECT_EQ(larger.status, 2);
  EXPECT_NE(larger.err.find("the machine's device has less memory"), std::string::npos) << larger.err;
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"simulate", "--machine", file("node")},
        {"simulate", "--machine", file("node"), "--model", "gpt2", "--tokens", "1"},
        {"simulate", file("trace"), "--machine", file("machine")},
        {"simulate", file("trace"), "--machine", file("machine"), "--host-budget", "1MiB", "--gpus", "2"}})
    EXPECT_EQ(run_penstock(arguments).status, 2);
}

TEST_F(SimulateCommand, TakesADistanceForReuseDistanceOnly) {
  const auto simulated =
      run({"--host-budget", "4MiB", "--eviction", "reuse_distance", "--reuse-distance-max", "8MiB"});
  EXPECT_EQ(simulated.status, 0);
  EXPECT_NE(simulated.err.find("its report predicts none"), std::string::npos) << simulated.err;
  EXPECT_EQ(run({"--host-budget", "4MiB"}).err.find("its report predicts none"), std::string::npos);
  for (const auto& wrong :
       {std::vector<std::string>{"--eviction", "reuse_distance"}, {"--reuse-distance-max", "8MiB"}}) {
    std::vector<std::string> arguments = {"--host-budget", "4MiB"};
    arguments.insert(arguments.end(), wrong.begin(), wrong.end());
    const auto result = run(arguments);
    EXPECT_EQ(result.status, 2);
    EXPECT_NE(result.err.find("--reuse-distance-max"), std::string::npos) << result.err;
  }
}

TEST_F(SimulateCommand, RefusesMoreMemoryThanTheMachineHas) {
  std::ofstream(file("machine"))
      << R"({"disk": {"read": "1 MiB", "write": "1 MiB", "mixed": "1 MiB"}, "memory": "2 MiB"})";
  EXPECT_EQ(run({"--host-budget", "2MiB"}).status, 0);
  const auto refused = run({"--host-budget", "3MiB"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_NE(refused.err.find("at most 2.0 MiB"), std::string::npos) << refused.err;
}

TEST_F(SimulateCommand, RefusesWhatItCannotUse) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"simulate", file("machine"), "--machine", file("machine"), "--host-budget", "1MiB"},
       "first line of a trace"},
      {{"simulate", file("trace"), "--machine", file("trace"), "--host-budget", "1MiB"},
       "the machine cannot be used"},
      {{"simulate", file("none"), "--machine", file("machine"), "--host-budget", "1MiB"}, "none"},
      {{"simulate", file("trace"), "--machine", file("machine"), "--host-budget", "1KiB"}, "too small"},
      {{"simulate", file("trace"), "--machine", file("machine"), "--host-budget", "much"}, "--host-budget"},
      {{"simulate", file("trace"), "--machine", file("machine"), "--host-budget", "1MiB", "--lookahead", "x"},
       "--lookahead"},
      {{"simulate", file("trace"), "--host-budget", "1MiB"}, "--machine"}};
  for (const auto& [arguments, said] : cases) {
    const auto result = run_penstock(arguments);
    EXPECT_NE(result.status, 0) << said;
    EXPECT_NE(result.err.find(said), std::string::npos) << said << " in\n" << result.err;
    EXPECT_EQ(result.out, "");
  }
}

}  // namespace
}  // namespace penstock::test
