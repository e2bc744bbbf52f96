#include "kit/safetensors_bytes.hpp"
#include "kit/scratch_directory.hpp"
#include "run_penstock.hpp"

#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace penstock::test {
namespace {

using Arguments = std::vector<std::string>;

bool contains(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

/// gpt2 on a machine with a GPU, whose disk is slow.
class EstimateMachine : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    return write_file(directory_.path() / name, text).string();
  }
  std::string machine(
      const std::string& disks = R"("disk": {"read": "1 GB", "write": "1 GB", "mixed": "1 GB"})",
      const std::string& device = R"({"flops": 1e14, "host_copy": "20 GB", "memory": "24 GB"})") {
    return write("machine.hjson",
                 "{" + disks + R"(, "update": "20 GB", "memory": "64 GB", "device": )" + device + "}");
  }
  ProgramResult estimate(const Arguments& more) {
    Arguments arguments = {"estimate", "--model", "gpt2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_penstock(arguments);
  }
  /// With a budget for which states have no room in host memory.
  ProgramResult search(const Arguments& more) {
    Arguments arguments = {"--tokens", "1024", "--budget-host", "1GiB", "--budget-device", "1GiB"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return estimate(arguments);
  }

 private:
  ScratchDirectory directory_;
};

TEST_F(EstimateMachine, FindsTheFastestConfigurationWhichConfigCheckAccepts) {
  const auto found = search({"--machine", machine(), "--path", "/a"});
  ASSERT_EQ(found.status, 0) << found.err;
  for (const char* said :
       {"chosen: stage ", "\ncandidates that fit, simulated", "\nsettings tried, one after the other",
        "\nplacement of a rank", "\na step of a rank works on",
        "\nlimiting resource: ", "\nwhat would help most\n", "/s = "})
    EXPECT_TRUE(contains(found.err, said)) << said << " in\n" << found.err;
  const std::string file = write("found.json", found.out);
  EXPECT_EQ(run_penstock({"config", "check", file}).status, 0);

  // The same figures as JSON, and as those of a simulation of what was found.
  const auto json = search({"--machine", machine(), "--path", "/a", "--json"}).json();
  EXPECT_EQ(json["config"], found.json());
  const double seconds = json["seconds_per_step"].asDouble();
  const auto simulated = run_penstock({"simulate", "--model", "gpt2", "--config", file, "--machine",
                                       machine(), "--tokens", "1024", "--json"})
                             .json();
  EXPECT_NEAR(simulated["steady"]["seconds"].asDouble() / seconds, 1, 0.02);
  double before = 0;
  for (const Json::Value& one : json["candidates"]) {
    EXPECT_GE(one["seconds"].asDouble(), before);
    before = one["seconds"].asDouble();
    EXPECT_GE(before, 0.98 * seconds);
  }
  bool has_limit = false;
  for (const Json::Value& one : json["resources"]) {
    EXPECT_NEAR(one["amount"].asDouble() / one["rate"].asDouble(), one["seconds"].asDouble(), 1e-9);
    has_limit = has_limit || one["what"] == json["limiting_resource"];
  }
  EXPECT_TRUE(has_limit);
  EXPECT_EQ(json["placement"][0]["kind"], "parameters");
  EXPECT_GT(json["update"]["tile_elements"].asUInt64(), 0u);
  EXPECT_GT(json["tried"].size(), 0u);
}

TEST_F(EstimateMachine, KeepsWhatTheConfigurationGives) {
  const std::string given =
      write("given.json", R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
      "zero_optimization": {"stage": 3, "sub_group_size": 131072,
      "offload_param": {"device": "nvme", "nvme_path": "/a", "max_in_cpu": 1000},
      "offload_optimizer": {"device": "nvme", "nvme_path": "/a", "ratio": 0.5, "buffer_count": 3}}})");
  const auto found = search({"--machine", machine(), "--config", given});
  ASSERT_EQ(found.status, 0) << found.err;
  EXPECT_TRUE(contains(found.err,
                       "note: --config gives penstock.tile_elements, penstock.tiles_in_flight, "
                       "zero_optimization.offload_optimizer.device, "
                       "zero_optimization.offload_optimizer.ratio, "
                       "zero_optimization.offload_param.device, zero_optimization.stage: the search "
                       "keeps their values"))
      << found.err;
  const Json::Value zero = found.json()["zero_optimization"], penstock = found.json()["penstock"];
  EXPECT_EQ(zero["offload_param"]["device"], "nvme");
  EXPECT_EQ(zero["offload_param"]["max_in_cpu"].asUInt64(), 1000u);
  EXPECT_EQ(zero["offload_optimizer"]["ratio"].asDouble(), 0.5);
  EXPECT_EQ(penstock["tile_elements"].asUInt64(), 131072u);
  EXPECT_EQ(penstock["tiles_in_flight"].asUInt64(), 3u);
  EXPECT_FALSE(penstock.isMember("update_split"));
  for (const char* tried :
       {"tile_elements ", "tiles_in_flight ", "\noffload_optimizer.ratio", "update_split"})
    EXPECT_FALSE(contains(found.err.substr(found.err.find("settings tried")), tried)) << tried;
  const auto too_small = search({"--machine", machine(), "--config", given, "--budget-host", "1MiB"});
  EXPECT_NE(too_small.status, 0);
}

TEST_F(EstimateMachine, KeepsWhatADeprecatedKeyGives) {
  const std::string given =
      write("given.json", R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
      "zero_optimization": {"stage": 2, "cpu_offload": true}})");
  const auto found = estimate({"--config", given, "--budget-device", "20GiB", "--budget-host", "64GiB"});
  ASSERT_EQ(found.status, 0) << found.err;
  EXPECT_TRUE(contains(found.err, "zero_optimization.offload_optimizer.device")) << found.err;
  EXPECT_EQ(found.json()["zero_optimization"]["offload_optimizer"]["device"], "cpu");
}

TEST_F(EstimateMachine, WantsADurableDirectoryForEachDisk) {
  const std::string two = machine(
                        R"("disks": [{"read": "4 GB", "write": "4 GB", "mixed": "4 GB", "count": 2}])"),
                    given = write("durable.json",
                                  R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
      "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}, "offload_optimizer": {"device": "nvme"}},
      "penstock": {"durable_directory": "/a"}})");
  const auto refused = estimate({"--config", given, "--machine", two, "--tokens", "1024"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_TRUE(contains(refused.err, "penstock.durable_directory, wanted 2 directories, got 1"))
      << refused.err;
}

// Without --machine, too.
TEST_F(EstimateMachine, SearchesByBytesWithinWhatTheConfigurationGives) {
  const std::string given =
      write("given.json", R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
      "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/a"}}})");
  const auto found = estimate({"--config", given, "--budget-host", "64GiB"});
  ASSERT_EQ(found.status, 0) << found.err;
  EXPECT_EQ(found.json()["zero_optimization"]["offload_param"]["device"], "nvme");
  const auto none = estimate({"--config", given, "--budget-host", "1MiB"});
  EXPECT_EQ(none.status, 1);
  EXPECT_TRUE(contains(none.err, "leave out of --config what the search shall choose")) << none.err;
}

TEST_F(EstimateMachine, DividesTheBytesAmongTheDisksOfTheMachine) {
  const std::string two = machine(R"("disks": [{"read": "4 GB", "write": "4 GB", "mixed": "4 GB"},
      {"read": "1 GB", "write": "1 GB", "mixed": "1 GB"}])");
  const auto found = search({"--machine", two, "--path", "/fast", "--path", "/slow"});
  ASSERT_EQ(found.status, 0) << found.err;
  const Json::Value weights = found.json()["penstock"]["path_weights"];
  ASSERT_EQ(weights.size(), 2u);
  EXPECT_EQ(weights[0].asDouble(), 4 * weights[1].asDouble());
  for (const Arguments& paths :
       {Arguments{"--path", "/a"}, {"--path", "/a", "--path", "/b", "--path", "/c"}}) {
    Arguments arguments = {"--machine", two};
    arguments.insert(arguments.end(), paths.begin(), paths.end());
    const auto refused = search(arguments);
    EXPECT_EQ(refused.status, 2);
    EXPECT_TRUE(contains(refused.err, "--path, wanted 2 directories, got ")) << refused.err;
  }
  const auto unnamed = search({"--machine", two});
  EXPECT_EQ(unnamed.status, 2);
  EXPECT_TRUE(contains(unnamed.err, "the fastest configuration that fits has swap files")) << unnamed.err;
}

TEST_F(EstimateMachine, TimesAConfigurationAndItsKnobs) {
  const Arguments arguments = {"--machine", machine(), "--tokens", "1024"};
  const auto text = estimate(arguments);
  ASSERT_EQ(text.status, 0) << text.err;
  for (const char* said : {"\na step of a rank works on", "\nlimiting resource: disk, ",
                           "/s = ", "\nwhat would help most\n", "device a rank        a step\n"})
    EXPECT_TRUE(contains(text.out, said)) << said << " in\n" << text.out;
  EXPECT_FALSE(contains(text.out, "unless arithmetic takes longer"));

  Arguments as_json = arguments;
  as_json.emplace_back("--json");
  const auto json = estimate(as_json).json();
  EXPECT_EQ(json["timing"]["limiting_resource"], "disk");
  const double seconds = json["timing"]["seconds_per_step"].asDouble();
  EXPECT_GT(seconds, 0);
  double before = 0;
  ASSERT_GT(json["knobs"].size(), 2u);
  for (const Json::Value& knob : json["knobs"]) {
    EXPECT_GE(knob["seconds_per_step"].asDouble(), before);
    before = knob["seconds_per_step"].asDouble();
  }
  EXPECT_LT(json["knobs"][0]["seconds_per_step"].asDouble(), seconds);
}

// A layout file has no shapes, but its steps have operations.
TEST_F(EstimateMachine, TimesALayoutFile) {
  const std::string layout = write("layout.json", R"({"units": [
      {"name": "block", "repeat": 4, "parameters": [{"name": "w", "shape": [1024, 1024]}]}]})");
  const auto timed =
      run_penstock({"estimate", "--model", layout, "--machine", machine(), "--tokens", "1024", "--json"});
  ASSERT_EQ(timed.status, 0) << timed.err;
  EXPECT_GT(timed.json()["timing"]["seconds_per_step"].asDouble(), 0);
  const auto memory = run_penstock(
      {"estimate", "--model", layout, "--machine", machine(), "--tokens", "1024", "--memory-device", "1GB"});
  EXPECT_EQ(memory.status, 2);
  EXPECT_TRUE(contains(memory.err, "--memory-device")) << memory.err;
}

TEST_F(EstimateMachine, SaysWhichBlocksRepeatTheirForward) {
  for (const auto& [memory, said] :
       {std::pair{"1700MiB",
                  "\nthe last 4 of 12 blocks keep their activations, the others repeat their forward\n"},
        {"3GiB", "\nall 12 blocks keep their activations\n"}}) {
    const auto found = search({"--machine", machine(), "--path", "/a", "--memory-device", memory});
    ASSERT_EQ(found.status, 0) << found.err;
    for (const std::string words : {"  blocks repeated\n", said, "\nactivations, of the trainer "})
      EXPECT_TRUE(contains(found.err, words)) << words << found.err;
  }
}

TEST_F(EstimateMachine, RefusesWhatCannotBeTimed) {
  for (const auto& [arguments, words] : {
           std::pair{Arguments{"--machine", machine()}, "--tokens"},
           {{"--machine", machine(), "--tokens", "8", "--format", "deepspeed"}, "--format deepspeed"},
           {{"--machine", machine(), "--tokens", "8", "--budget-host", "128GiB"},
            "the machine has less memory: --budget-host"},
           {{"--machine", machine(), "--tokens", "8", "--budget-device", "32GiB"},
            "the machine has less memory: --budget-device"},
           {{"--machine", machine(), "--tokens", "8", "--memory-device", "32GiB"},
            "the machine's device has less memory: --memory-device"},
           {{"--machine", "none.hjson", "--tokens", "8"}, "none.hjson"},
       }) {
    const auto refused = estimate(arguments);
    EXPECT_NE(refused.status, 0) << words;
    EXPECT_EQ(refused.out, "") << words;
    EXPECT_TRUE(contains(refused.err, words)) << refused.err;
  }
  const std::string disk = R"("disk": {"read": "1 GB", "write": "1 GB", "mixed": "1 GB"})";
  for (const auto& [device, words] :
       {std::pair{R"({"flops": 1e14})", "device.host_copy"}, {R"({"host_copy": "20 GB"})", "device.flops"}}) {
    const auto refused = estimate({"--machine", machine(disk, device), "--tokens", "8"});
    EXPECT_EQ(refused.status, 2) << words;
    EXPECT_TRUE(contains(refused.err, words)) << refused.err;
  }
  EXPECT_EQ(
      run_penstock({"estimate", "--params", "10", "--largest-layer", "1", "--machine", machine()}).status, 2);
}

}  // namespace
}  // namespace penstock::test
