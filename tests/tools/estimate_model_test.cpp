#include "kit/safetensors_bytes.hpp"
#include "kit/scratch_directory.hpp"
#include "run_penstock.hpp"

#include <penstock/zero/layout/memory_plan.hpp>

#include <gtest/gtest.h>
#include <string>
#include <utility>
#include <vector>

namespace penstock::test {
namespace {

using Arguments = std::vector<std::string>;

ProgramResult estimate(Arguments arguments) {
  arguments.insert(arguments.begin(), "estimate");
  return run_penstock(arguments);
}

bool contains(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

/// The model "w" of 1 Mi parameters in two units, and a configuration.
class EstimateModel : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    return write_file(directory_.path() / name, text).string();
  }
  std::string layout() {
    return write("layout.json", R"({"units": [
      {"name": "a", "parameters": [{"name": "w", "shape": [1024, 512]}]},
      {"name": "b", "parameters": [{"name": "w", "count": 524288}]}]})");
  }
  std::string config(const std::string& penstock = "{}") {
    return write("config.json", R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
      "bf16": {"enabled": true}, "zero_optimization": {"stage": 3,
      "offload_param": {"device": "nvme", "nvme_path": ["/a", "/b"]},
      "offload_optimizer": {"device": "nvme", "nvme_path": ["/a", "/b"]}}, "penstock": )" +
                                    penstock + "}");
  }
  [[nodiscard]] std::string path(const std::string& name) const {
    return (directory_.path() / name).string();
  }

 private:
  ScratchDirectory directory_;
};

TEST_F(EstimateModel, PrintsThePlacementTheLimitAndTheNextKnobs) {
  const std::string limits = config(R"({"path_limits": [1e9, 1e9]})");
  const auto text = estimate({"--model", "gpt2", "--config", limits, "--gpus", "2"}).out;
  for (const char* said :
       {"placement of a rank ", "\nparameters  ", "\noptimizer states  ", "   100.0 %", "\ntiles of ",
        " elements, one at a time updated by the CPU, at most ", " read ahead\n",
        "limiting resource, unless arithmetic takes longer: the drives of a node move ",
        " s at path_limits\n", "\nnext knobs, of a node  ", "\nstate_format split (the same bits)  "})
    EXPECT_TRUE(contains(text, said)) << said << " in\n" << text;

  const auto json = estimate({"--model", "gpt2", "--config", limits, "--gpus", "2", "--json"}).json();
  EXPECT_EQ(json["placement"][0]["kind"], "parameters");
  EXPECT_EQ(json["placement"][0]["nvme"].asDouble(), 1.0);
  EXPECT_GT(json["update"]["tile_elements"].asUInt64(), 0u);
  EXPECT_TRUE(json["update"]["by_cpu"].asBool());
  EXPECT_GT(json["drive_seconds_per_step"].asDouble(), 0);
  EXPECT_LT(json["knobs"][0]["moved_per_step_per_node_bytes"].asUInt64(),
            json["nvme_read_per_step_per_node_bytes"].asUInt64() +
                json["nvme_written_per_step_per_node_bytes"].asUInt64());

  const auto in_memory =
      estimate({"--model", "gpt2", "--offload-param", "cpu", "--offload-optimizer", "cpu"}).out;
  EXPECT_TRUE(contains(in_memory, "limiting resource: arithmetic, or the link of each device")) << in_memory;
  EXPECT_FALSE(contains(in_memory, "next knobs"));
}

TEST_F(EstimateModel, PlacesTheActivationsOfATrainerOnItsDevice) {
  const auto json = estimate({"--model", "gpt2", "--tokens", "1024", "--json"}).json();
  const Json::Value &placement = json["placement"], &sizes = json["activations"];
  const Json::Value& activations = placement[placement.size() - 1];
  EXPECT_EQ(activations["kind"], "activations, of the trainer");
  EXPECT_EQ(activations["device"].asDouble(), 1.0);
  EXPECT_EQ(activations["per_rank_bytes"].asUInt64(),
            sizes["blocks"].asUInt64() * sizes["block_bytes"].asUInt64() + sizes["head_bytes"].asUInt64());
}

TEST_F(EstimateModel, PrintsThePlanOfTheRuntime) {
  const auto json = estimate({"--model", "gpt2", "--config", config(), "--gpus", "2", "--json"}).json();
  const auto read = zero::Config::from_file(config(), 2).value();
  zero::ModelLayout
      gpt2;  // another layout of as many bytes would have another plan: only the sums are compared
  ASSERT_TRUE(json.isObject());
  EXPECT_EQ(json["parameters"].asUInt64(), 124'439'808u);
  EXPECT_EQ(json["units"].asUInt64(), 14u);

  const auto of_layout =
      estimate({"--model", layout(), "--config", config(), "--gpus", "2", "--json"}).json();
  const zero::ModelLayout model{.units = {{.name = "a", .parameters = {{"w", ElementCount(524288)}}},
                                          {.name = "b", .parameters = {{"w", ElementCount(524288)}}}}};
  const zero::MemoryPlan plan = zero::plan_memory(read, model, 2, 2).value();
  EXPECT_EQ(of_layout["per_rank_bytes"]["device"].asUInt64(), plan.device_budget.value());
  EXPECT_EQ(of_layout["per_rank_bytes"]["host"].asUInt64(), plan.host_allocated().value());
  EXPECT_EQ(of_layout["per_node_bytes"]["nvme"].asUInt64(), 2 * plan.swap_bytes.value());
  EXPECT_EQ(of_layout["minimum_bytes"]["host_per_node"].asUInt64(), 2 * plan.host_minimum.value());
  EXPECT_EQ(of_layout["nvme_written_per_step_per_node_bytes"].asUInt64(),
            2 * (plan.tile_writes + plan.shard_writes).value());
}

TEST_F(EstimateModel, PrintsATableOfWhatDeepSpeedLeavesOut) {
  const auto table = estimate({"--model", "llama-3-8b", "--gpus", "8", "--path", "/mnt/a", "--path", "/mnt/b",
                               "--drive-endurance", "600"});

  EXPECT_EQ(table.status, 0) << table.err;
  for (const char* words :
       {"llama-3-8b (preset): 8 030 261 248 parameters in 34 units, the largest of 525 340 672\n",
        "1 x 8 ranks, stage 3, bf16, offload_param nvme, offload_optimizer nvme, state_format fp32, 1 "
        "micro-batch\n",
        "device  pool of gathered units and full gradients", "in the bucket of a reduction",
        "host    staging, and copies of what is on disk", "nvme    optimizer tiles", "nvme 14.00\n",
        "a step moves, at most, per node", "/mnt/b                50.0 %", "steps to the rated endurance",
        "RLIMIT_MEMLOCK", "io_uring registers",
        "DeepSpeed's estimator for this model, stage 3, offload_param=cpu, offload_optimizer=cpu, "
        "zero_init=1",
        "it leaves out NVMe", "activations and the trainer's own memory are not counted; --tokens adds"}) {
    EXPECT_TRUE(contains(table.out, words)) << words << "\n" << table.out;
  }
}

TEST_F(EstimateModel, SaysWhichBlocksRepeatTheirForward) {
  const auto of = [](Arguments more) {
    Arguments arguments = {"--model", "llama-3-8b", "--gpus", "8", "--tokens", "16384"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return estimate(arguments);
  };
  EXPECT_TRUE(contains(of({}).out, "each of 32 blocks 3.1 GiB, or its input, 128.0 MiB"));
  const auto some = of({"--memory-device", "80GiB"});
  EXPECT_TRUE(
      contains(some.out, "the last 17 blocks keep theirs, the first 15 repeat their forward, 15.6 % more"))
      << some.out;
  const auto all = of({"--memory-device", "800GiB", "--json"}).json()["activations"];
  EXPECT_EQ(all["kept_blocks"].asUInt(), 32u);
  EXPECT_EQ(all["repeated_forward"].asDouble(), 0);
  const auto none = of({"--memory-device", "8GiB"});
  EXPECT_NE(none.status, 0);
  EXPECT_TRUE(contains(none.err, "beside 3.3 GiB of the engine")) << none.err;
  const auto unknown = estimate({"--model", layout(), "--tokens", "16"});
  EXPECT_NE(unknown.status, 0);
  EXPECT_TRUE(contains(unknown.err, "wanted a preset")) << unknown.err;
  EXPECT_EQ(of({"--budget-host", "64GiB"}).status, 2);
  EXPECT_EQ(estimate({"--model", "gpt2", "--memory-device", "1GiB"}).status, 2);
}

TEST_F(EstimateModel, AddsUpTheMemoryOfARunOnTheCpu) {
  const Arguments arguments{"--model", layout(), "--gpus", "2", "--device-memory", "host"};
  auto with_json = arguments;
  with_json.emplace_back("--json");
  const auto bytes = estimate(with_json).json()["per_node_bytes"];
  const ByteCount both(bytes["device"].asUInt64() + bytes["host"].asUInt64());

  EXPECT_TRUE(contains(estimate(arguments).out, "a node needs " + to_string(both) + " of memory for both"));
  EXPECT_FALSE(contains(estimate({"--model", layout()}).out, "the device is the CPU"));
}

TEST_F(EstimateModel, TakesTheEnduranceOfTheConfiguration) {
  const std::string known = config(R"({"path_weights": [1, 3], "path_endurance": [600e12, 300e12]})");
  const auto paths = estimate({"--model", "gpt2", "--config", known, "--json"}).json()["paths"];

  ASSERT_EQ(paths.size(), 2u);
  for (Json::ArrayIndex i = 0; i < 2; ++i) {
    const double written = paths[i]["written_per_step_bytes"].asDouble();
    EXPECT_NEAR(paths[i]["steps_to_endurance"].asDouble(), (i == 0 ? 600e12 : 300e12) / written, 1);
  }
}

TEST_F(EstimateModel, CountsTheStepsOfEachDriveToItsEndurance) {
  const std::string weighted = config(R"({"path_weights": [1, 3]})");
  const auto json =
      estimate({"--model", "gpt2", "--config", weighted, "--drive-endurance", "1.5", "--json"}).json();

  ASSERT_EQ(json["paths"].size(), 2u);
  for (const Json::Value& path : json["paths"]) {
    const double written = path["written_per_step_bytes"].asDouble();
    EXPECT_EQ(path["steps_to_endurance"].asUInt64(), static_cast<std::uint64_t>(1.5e12 / written));
  }
  EXPECT_DOUBLE_EQ(json["paths"][1]["share"].asDouble(), 0.75);
  EXPECT_NEAR(
      json["paths"][0]["steps_to_endurance"].asDouble() / json["paths"][1]["steps_to_endurance"].asDouble(),
      3, 0.01);
}

TEST_F(EstimateModel, TakesASafetensorsHeaderAndSaysWhatItAssumes) {
  const std::string file = write("model.safetensors", safetensors_bytes(small_gpt2(2)));
  const auto result = estimate({"--model", file, "--json"});

  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.json()["source"], "safetensors header");
  EXPECT_EQ(result.json()["units"].asUInt64(), 4u);
  EXPECT_TRUE(contains(result.err, "note: the head has no matrix of its own and uses wte.weight"))
      << result.err;
}

TEST_F(EstimateModel, UsesTheBudgetsOfAConfiguration) {
  const auto bytes = [&](const std::string& penstock) {
    return estimate({"--model", layout(), "--config", config(penstock), "--json"}).json()["per_node_bytes"];
  };

  EXPECT_EQ(bytes(R"({"host_budget": "1GiB"})")["host"].asUInt64(), 1u << 30);
  EXPECT_LT(bytes("{}")["host"].asUInt64(), 1u << 30);
  const auto small = estimate({"--model", layout(), "--config", config(R"({"host_budget": "64KiB"})")});
  EXPECT_EQ(small.status, 1);
  EXPECT_TRUE(contains(small.err, "the host budget is too small")) << small.err;
}

TEST_F(EstimateModel, AddsUpTheRanksOfNumaNodesWithOtherBudgets) {
  const std::string file = config(R"({"node_budgets": [2147483648, 1073741824], "rank_nodes": [1, 0]})");
  const auto result = estimate({"--model", layout(), "--config", file, "--gpus", "2", "--json"});
  const auto text = estimate({"--model", layout(), "--config", file, "--gpus", "2"}).out;

  ASSERT_EQ(result.status, 0) << result.err;
  const Json::Value json = result.json();
  EXPECT_EQ(json["local_rank"].asUInt(), 0u);
  EXPECT_EQ(json["per_rank_bytes"]["host"].asUInt64(), std::uint64_t{1} << 30);
  EXPECT_EQ(json["per_node_bytes"]["host"].asUInt64(), std::uint64_t{3} << 30);
  EXPECT_TRUE(contains(text, "node_budgets differ: per rank")) << text;
  EXPECT_TRUE(contains(text, " is rank 0 of a node, ")) << text;
}

TEST_F(EstimateModel, PrintsDeepSpeedsTableForAModel) {
  const auto of_model = estimate({"--model", "llama-2-7b", "--gpus", "4", "--format", "deepspeed"});
  const auto of_sizes = estimate(
      {"--params", "6738415616", "--largest-layer", "131072000", "--gpus", "4", "--format", "deepspeed"});

  EXPECT_EQ(of_model.status, 0) << of_model.err;
  EXPECT_EQ(of_model.out, of_sizes.out);
  EXPECT_EQ(estimate({"--model", "llama-2-7b", "--format", "deepspeed", "--stage", "2"}).status, 0);
}

TEST_F(EstimateModel, ListsThePresets) {
  const auto text = estimate({"--presets"});
  const auto json = estimate({"--presets", "--json"}).json();

  EXPECT_EQ(text.status, 0);
  EXPECT_TRUE(contains(text.out, "llama-3.1-405b     405 853 388 800  also llama-3-405b\n")) << text.out;
  EXPECT_EQ(json.size(), 21u);
  for (const Json::Value& row : json) EXPECT_FALSE(row["source"].asString().empty());
}

TEST_F(EstimateModel, FindsAConfigurationThatConfigCheckAcceptsAndThatFits) {
  for (const auto& [host, device] :
       {std::pair{"64GiB", "64GiB"}, {"4GiB", "1GiB"}, {"1GiB", "1GiB"}, {"1GiB", "2GiB"}}) {
    SCOPED_TRACE(std::string(host) + " " + device);
    const auto found = estimate({"--model", "gpt2", "--gpus", "2", "--budget-host", host, "--budget-device",
                                 device, "--path", "/mnt/a", "--path", "/mnt/b"});

    ASSERT_EQ(found.status, 0) << found.err;
    EXPECT_TRUE(contains(found.err, "chosen: stage ")) << found.err;
    const std::string file = write("found.json", found.out);
    for (const char* ranks : {"1", "2", "16"}) {
      EXPECT_EQ(run_penstock({"config", "check", file, "--world-size", ranks}).status, 0);
    }
    const auto again = estimate({"--model", "gpt2", "--gpus", "2", "--config", file, "--json"});
    EXPECT_EQ(again.status, 0) << again.err;
  }
}

TEST_F(EstimateModel, ExplainsWhyCheaperConfigurationsDoNotFit) {
  const auto found = estimate({"--model", "gpt2", "--budget-host", "64GiB", "--budget-device", "1GiB"});

  EXPECT_EQ(found.status, 0) << found.err;
  EXPECT_TRUE(
      contains(found.err, "cheaper, but do not fit:\n- stage 2, offload_optimizer none, state_format fp32\n"))
      << found.err;
  EXPECT_TRUE(contains(found.err, " of 1.0 GiB (too much) a rank")) << found.err;
  EXPECT_EQ(found.json()["penstock"]["device_budget"].asUInt64(), 1u << 30);
  EXPECT_EQ(found.json()["penstock"]["host_budget"].asUInt64(), std::uint64_t{64} << 30);
  EXPECT_EQ(found.json()["zero_optimization"]["offload_optimizer"]["device"], "cpu");
}

TEST_F(EstimateModel, SearchesWithTheRestOfAConfiguration) {
  const std::string base = config(R"({"host_budget": "12MiB", "tiles_in_flight": 2})");
  const auto found = estimate({"--model", layout(), "--config", base, "--budget-device", "8MiB"});

  ASSERT_EQ(found.status, 0) << found.err;
  EXPECT_EQ(found.json()["penstock"]["host_budget"].asUInt64(), 12u << 20)
      << "the limit of the configuration";
  EXPECT_EQ(found.json()["penstock"]["tiles_in_flight"].asUInt64(), 2u);
  EXPECT_EQ(found.json()["gradient_accumulation_steps"].asUInt64(), 2u);
  EXPECT_EQ(found.json()["zero_optimization"]["offload_optimizer"]["nvme_path"].size(), 2u);
}

TEST_F(EstimateModel, NotesWhatHasNoEffectOrIsReplaced) {
  const std::string config = write("ds_config.json", R"({"train_micro_batch_size_per_gpu": 1,
      "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
      "penstock": {"device_states": "100MiB", "node_budgets": [8589934592], "rank_nodes": [0]}})");
  const std::string no_effect = "penstock.device_states: has no effect",
                    replaced = "--budget-host replaces penstock.node_budgets";
  const auto notes = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"estimate", "--model", "gpt2", "--config", config};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto result = run_penstock(arguments);
    EXPECT_EQ(result.status, 0) << result.err;
    return result.err;
  };
  EXPECT_EQ(notes({}).find(no_effect), std::string::npos);
  EXPECT_NE(notes({"--device-memory", "host"}).find(no_effect), std::string::npos);
  const std::string search = notes({"--device-memory", "host", "--budget-host", "8GiB"});
  EXPECT_NE(search.find(no_effect), std::string::npos) << search;
  EXPECT_NE(search.find(replaced), std::string::npos) << search;
  EXPECT_EQ(search.find("device_states 100"), std::string::npos) << search;  // of no candidate
}

TEST_F(EstimateModel, AsksForADirectoryIfTheChoiceNeedsOne) {
  const Arguments arguments{"--model", "gpt2", "--budget-host", "1GiB", "--budget-device", "1GiB"};
  auto with_path = arguments;
  with_path.insert(with_path.end(), {"--path", "/mnt/a"});

  const auto without = estimate(arguments);

  EXPECT_EQ(without.status, 2);
  EXPECT_EQ(without.out, "");
  EXPECT_TRUE(contains(without.err, "--path DIR")) << without.err;
  EXPECT_EQ(estimate(with_path).json()["zero_optimization"]["offload_optimizer"]["nvme_path"], "/mnt/a");
}

TEST_F(EstimateModel, SaysTheSmallestNeedsWhereNothingFits) {
  const auto none = estimate({"--model", "llama-2-70b", "--budget-host", "1GiB", "--budget-device", "1GiB"});

  EXPECT_EQ(none.status, 1);
  EXPECT_EQ(none.out, "");
  for (const char* words : {"no configuration fits", "host    at least ", "device  at least ", "--lossy"}) {
    EXPECT_TRUE(contains(none.err, words)) << none.err;
  }
}

TEST_F(EstimateModel, TriesLossyFormatsOnlyWhenAsked) {
  const Arguments arguments{"--model",         "gpt2", "--budget-host", "1GiB",
                            "--budget-device", "1GiB", "--path",        "/a"};
  auto lossy = arguments;
  lossy.emplace_back("--lossy");

  EXPECT_EQ(estimate(arguments).json()["penstock"]["state_format"], "split");
  EXPECT_NE(estimate(lossy).json()["penstock"]["state_format"], "split");
}

TEST_F(EstimateModel, RefusesArgumentsThatDoNotApplyTogether) {
  const Arguments bad[] = {
      {},
      {"--model"},
      {"--model", "gpt2", "--params", "10"},
      {"--model", "gpt2", "--largest-layer", "10"},
      {"--model", "gpt2", "--stage", "2"},
      {"--model", "gpt2", "--gpus", "0"},
      {"--model", "gpt2", "--nodes", "65536"},
      {"--model", "gpt2", "--device-memory", "shared"},
      {"--model", "gpt2", "--state-format", "q4"},
      {"--model", "gpt2", "--dtype", "fp16", "--state-format", "split"},
      {"--model", "gpt2", "--lossy"},
      {"--model", "gpt2", "--drive-endurance", "0"},
      {"--model", "gpt2", "--drive-endurance", "-5"},
      {"--model", "gpt2", "--drive-endurance", "much"},
      {"--model", "gpt2", "--drive-endurance", "nan"},
      {"--model", "gpt2", "--budget-host", "0"},
      {"--model", "gpt2", "--budget-host", "-1GiB"},
      {"--model", "gpt2", "--budget-host", "64 gigs"},
      {"--model", "gpt2", "--budget-device", "1e400GiB"},
      {"--model", "gpt2", "--budget-device", ""},
      {"--model", "gpt2", "--budget-host", "1GiB", "--drive-endurance", "600"},
      {"--model", "gpt2", "--budget-host", "1GiB", "--offload-param", "cpu"},
      {"--model", "gpt2", "--budget-device", "1GiB", "--state-format", "split"},
      {"--model", "gpt2", "--budget-host", "1GiB", "--format", "deepspeed"},
      {"--model", "gpt2", "--drive-endurance", "1", "--format", "deepspeed"},
      {"--model", "gpt2", "--format", "deepspeed", "--factor", "x"},
      {"--model", "gpt2", "--gpus", "65535", "--nodes", "65535", "--micro-batches", "2"},
      {"--params", "10", "--largest-layer", "1", "--path", "/a"},
      {"--params", "10", "--largest-layer", "1", "--budget-host", "1GiB"},
      {"--params", "10", "--largest-layer", "1", "--drive-endurance", "1"},
      {"--params", "10", "--largest-layer", "1", "--device-memory", "host"},
      {"--model", "gpt2", "--path", ""},
      {"--model", ""},
      {"--model", "gpt2", "--drive-endurance", ""},
  };
  for (const Arguments& arguments : bad) {
    std::string line;
    for (const std::string& argument : arguments) line.append(argument).append(" ");
    const auto result = estimate(arguments);

    EXPECT_EQ(result.status, 2) << line << result.out << result.err;
    EXPECT_EQ(result.out, "") << line;
    EXPECT_NE(result.err, "") << line;
  }
}

TEST_F(EstimateModel, NamesTheFileAndWhatIsWrongWithIt) {
  const std::string header = safetensors_bytes({{"w", {8}}});
  for (const auto& [file, status, words] : {
           std::tuple{std::string("gtp2"), 2, "did you mean gpt2?"},
           {path("none.safetensors"), 2, "neither a preset nor a file"},
           {path(""), 1, "the directory has no such file"},
           {write("short.safetensors", header.substr(0, 7)), 1, "too short for a safetensors header"},
           {write("cut.safetensors", header.substr(0, 20)), 1, "the file ends within its header"},
           {write("data.safetensors", header + "x"), 1, "the file is shorter than its tensors"},
           {write("foreign.safetensors", "PK\x03\x04 a zip file, as PyTorch writes it"), 2,
            "no safetensors file"},
           {write("text.safetensors", with_length("{\"w\": 7}")), 2,
            "wanted an object of dtype, shape and data_offsets"},
           {write("a.safetensors.index.json", R"({"weight_map": {"w": "b.safetensors"}})"), 1,
            "the index has no shapes"},
           {write("broken.json", R"({"units": )"), 2, "the layout cannot be used"},
           {write("units.json", "{\n\"units\": [{\"nam\": \"a\"}]}"), 2, "units[0].nam, line 2: unknown key"},
           {write("huge.json", R"({"units": [{"name": "a", "repeat": 65536, "parameters":
              [{"name": "w", "shape": [262144, 262144]}]}]})"),
            2, "too many elements"},
           {std::string("/dev/zero"), 2, "a regular file"},
       }) {
    const auto result = estimate({"--model", file});

    EXPECT_EQ(result.status, status) << file << result.err;
    EXPECT_EQ(result.out, "") << file;
    EXPECT_TRUE(contains(result.err, words)) << result.err;
  }
}

TEST_F(EstimateModel, SaysWhatIsWrongWithAConfiguration) {
  const auto status = [&](const std::string& file) {
    return estimate({"--model", "gpt2", "--config", file}).status;
  };

  EXPECT_EQ(status(write("unknown.json", R"({"train_batch_size": 1, "zero_optimisation": {}})")), 2);
  EXPECT_EQ(status(config(R"({"path_weights": [1]})")), 2);
  EXPECT_EQ(status(config(R"({"unit_elements_max": 1000})")), 2);
  EXPECT_EQ(status(path("no_config.json")), 1);
  EXPECT_EQ(status(""), 2);
  const auto weights =
      estimate({"--model", "gpt2", "--config", config(R"({"path_weights": [1, 2]})"), "--path", "/a"});
  EXPECT_EQ(weights.status, 2);
  EXPECT_TRUE(contains(weights.err, "path_weights")) << weights.err;
}

}  // namespace
}  // namespace penstock::test
