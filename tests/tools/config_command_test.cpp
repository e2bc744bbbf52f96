#include "kit/golden.hpp"
#include "kit/scratch_directory.hpp"
#include "run_penstock.hpp"

#include <gtest/gtest.h>
#include <json/json.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>

namespace penstock::test {
namespace {

std::string golden_case(const char* name) {
  return (golden_directory() / "config/cases" / name).string();
}

TEST(ConfigCheck, PrintsTheEffectiveConfigurationAndWhatHasNoEffect) {
  const auto result =
      run_penstock({"config", "check", golden_case("stage3_names.json"), "--world-size", "4", "--json"});

  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.json()["train_micro_batch_size_per_gpu"].asInt(), 2);
  EXPECT_EQ(result.json()["zero_optimization"]["stage"].asInt(), 3);
  EXPECT_NE(result.out.find("0.9,"), std::string::npos) << "betas are printed as they are written";
  EXPECT_NE(result.err.find("note: zero_optimization.stage3_max_reuse_distance, line 8: has no effect"),
            std::string::npos)
      << result.err;
}

class ConfigCheckOf : public testing::Test {
 protected:
  std::string file(const std::string& text) {
    const auto path = directory_.path() / "ds_config.json";
    std::ofstream(path) << text;
    return path.string();
  }

 private:
  ScratchDirectory directory_;
};

constexpr const char* some_origins = R"({
  "train_batch_size": 8,
  "bfloat16": {"enabled": true},
  "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto", "stage3_max_live_parameters": 7}
})";

TEST_F(ConfigCheckOf, SaysWhereEachValueComesFrom) {
  const auto result = run_penstock({"config", "check", file(some_origins)});

  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* line :
       {"  \"train_batch_size\": 8,  // line 2\n",
        "  \"train_micro_batch_size_per_gpu\": 8,  // derived from train_batch_size\n",
        "    \"enabled\": true  // line 3\n", "    \"stage\": 2  // line 4\n",
        "    \"reduce_bucket_size\": 500000000,  // line 4 (auto)\n",
        "    \"max_live_parameters\": 7,  // line 4, as zero_optimization.stage3_max_live_parameters\n",
        "  \"gradient_clipping\": 1,  // default\n"}) {
    EXPECT_NE(result.out.find(line), std::string::npos) << line << result.out;
  }
}

TEST_F(ConfigCheckOf, NamesTheKeysThatADerivedValueFollowsFrom) {
  const auto result =
      run_penstock({"config", "check", file(R"({"train_batch_size": 8, "bf16": {"enabled": true},
      "optimizer": {"type": "Adagrad"}, "communication_data_type": "fp32",
      "zero_optimization": {"stage": 3, "cpu_offload": true, "sub_group_size": 100000}})")});

  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* line :
       {"\"grad_accum_dtype\": \"bf16\"  // derived from bf16.enabled\n",
        "\"eps\": 1e-10,  // derived from optimizer.type\n",
        "\"reduction\": \"exact\",  // derived from bf16.enabled, communication_data_type\n",
        "\"device\": \"cpu\",  // derived from zero_optimization.cpu_offload\n",
        "\"tile_elements\": 98304,  // derived from zero_optimization.sub_group_size\n"}) {
    EXPECT_NE(result.out.find(line), std::string::npos) << line << result.out;
  }
}

TEST_F(ConfigCheckOf, SaysWhatALineSaysWhereItsValueIsAnother) {
  const auto adam_w = run_penstock(
      {"config", "check",
       file(R"({"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"adam_w_mode": false}}})")});
  const auto adam =
      run_penstock({"config", "check", file(R"({"train_batch_size": 8, "optimizer": {"type": "Adam"}})")});

  EXPECT_NE(adam_w.out.find("\"adam_w_mode\": true,  // line 1, which says false\n"), std::string::npos)
      << adam_w.out;
  EXPECT_NE(adam_w.out.find("\"type\": \"AdamW\"  // line 1\n"), std::string::npos) << adam_w.out;
  EXPECT_NE(adam.out.find("\"type\": \"AdamW\"  // line 1, which says \"Adam\"\n"), std::string::npos)
      << adam.out;
}

TEST_F(ConfigCheckOf, PrintsWhatIsUsedForKeysThatAreNotGiven) {
  const auto result =
      run_penstock({"config", "check", file(R"({"train_batch_size": 8, "bf16": {"enabled": true},
      "penstock": {"state_format": "split_bf16"}, "zero_optimization": {"stage": 3,
      "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "nvme", "nvme_path": "/tmp"}}})")});

  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* line : {"    \"overlap_comm\": true,  // derived from zero_optimization.stage\n",
                           "    \"tile_elements\": 524288,  // derived from penstock.state_format, "
                           "zero_optimization.offload_optimizer.device\n",
                           "    // \"path_weights\": measured at start  // default\n",
                           "    // \"reduction\": native over NCCL, else exact  // default\n",
                           "    // \"type\": none: the learning rate is constant  // default\n"}) {
    EXPECT_NE(result.out.find(line), std::string::npos) << line << result.out;
  }
  for (const char* foreign : {"muon_lr", "cycle_min_lr", "sub_group_size", "buffer_count"})
    EXPECT_EQ(result.out.find(foreign), std::string::npos) << foreign << result.out;
}

TEST_F(ConfigCheckOf, LeavesOutKeysThatActOnNothing) {
  const auto host = run_penstock({"config", "check", file(R"({"train_batch_size": 8})")});
  const auto as_json = run_penstock({"config", "check", file(R"({"train_batch_size": 8})"), "--json"});
  const auto muon =
      run_penstock({"config", "check", file(R"({"train_batch_size": 8, "optimizer": {"type": "Muon"}})")});

  EXPECT_NE(
      host.out.find("// \"tile_elements\": 3 MiB of the state format; of states that a GPU keeps 192 MiB"),
      std::string::npos)
      << host.out;
  EXPECT_EQ(host.out.find("path_weights"), std::string::npos) << host.out;
  EXPECT_EQ(host.out.find("nvme_path"), std::string::npos) << host.out;
  const Json::Value json = as_json.json();
  const auto is_reduction = [](const Json::Value& row) { return row["key"] == "penstock.reduction"; };
  const auto row = std::find_if(json["origins"].begin(), json["origins"].end(), is_reduction);
  ASSERT_NE(row, json["origins"].end()) << as_json.out;
  EXPECT_EQ((*row)["in_words"], "native over NCCL, else exact");
  EXPECT_FALSE(json["penstock"].isMember("reduction")) << as_json.out;
  EXPECT_NE(muon.out.find("// \"muon_lr\": lr  // default\n"), std::string::npos) << muon.out;
}

TEST_F(ConfigCheckOf, PrintsWhatFollowsFromOtherKeysOfTheirBlock) {
  const auto warmup = run_penstock({"config", "check", file(R"({"train_batch_size": 8,
      "optimizer": {"type": "Adam", "params": {"lr": 0.25}}, "scheduler": {"type": "WarmupLR",
      "params": {"warmup_max_lr": "auto"}}})")});
  const auto cycle = run_penstock({"config", "check", file(R"({"train_batch_size": 8,
      "optimizer": {"type": "Adam"}, "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1,
      "cycle_max_lr": 0.2, "cycle_first_step_size": 7}}})")});

  EXPECT_NE(warmup.out.find("\"warmup_max_lr\": 0.25,  // line 3 (auto)\n"), std::string::npos) << warmup.out;
  EXPECT_NE(cycle.out.find("\"cycle_second_step_size\": 7,  // derived from "), std::string::npos)
      << cycle.out;
}

TEST_F(ConfigCheckOf, NamesWhatDecidesWhereOneKeySaysItForAnother) {
  const auto result = run_penstock({"config", "check", file(R"({"train_batch_size": 8,
      "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": null,
      "bf16": {"enabled": true, "bf16_master_weights_and_grads": true}, "wandb": {"enabled": false},
      "zero_optimization": {"stage": 2, "overlap_comm": null, "sub_group_size": 1e9,
      "offload_optimizer": {"device": "cpu"}}})")});

  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* line :
       {"\"gradient_accumulation_steps\": 2,  // derived from train_batch_size, "
        "train_micro_batch_size_per_gpu\n",
        "\"overlap_comm\": false,  // default\n",
        "// \"sub_group_size\": 1000000000, see penstock.tile_elements  // line 4\n",
        "// \"state_format\": moments  // derived from bf16.bf16_master_weights_and_grads, bf16.enabled\n"}) {
    EXPECT_NE(result.out.find(line), std::string::npos) << line << result.out;
  }
}

TEST_F(ConfigCheckOf, NamesTheOldFormOfTheStage) {
  const auto result =
      run_penstock({"config", "check", file(R"({"train_batch_size": 8, "zero_optimization": true})")});

  EXPECT_NE(result.out.find("\"stage\": 1  // line 1, as zero_optimization\n"), std::string::npos)
      << result.out;
}

TEST_F(ConfigCheckOf, PrintsNotesAndErrorsAsJsonToo) {
  const auto noted = run_penstock(
      {"config", "check", file(R"({"train_batch_size": 8, "fp16": {"hysteresis": 4}})"), "--json"});
  const auto refused = run_penstock({"config", "check", file("{\"no_such_key\": 1}"), "--json"});

  EXPECT_EQ(noted.status, 0) << noted.err;
  EXPECT_NE(noted.json()["notes"].toStyledString().find("fp16.hysteresis, line 1: has no effect"),
            std::string::npos)
      << noted.out;
  EXPECT_EQ(refused.status, 2);
  EXPECT_NE(refused.json()["error"].asString().find("no_such_key, line 1: unknown key"), std::string::npos)
      << refused.out;
}

TEST_F(ConfigCheckOf, PrintsWhatItReadsAgain) {
  const auto first = run_penstock({"config", "check", file(some_origins)});
  const auto as_json = run_penstock({"config", "check", file(some_origins), "--json"});
  for (const std::string& text : {first.out, as_json.out}) {
    const auto again = run_penstock({"config", "check", file(text), "--json"});
    ASSERT_EQ(again.status, 0) << again.err;
    Json::Value now = again.json(), before = as_json.json();
    EXPECT_EQ(before["origins"][0]["key"], "train_batch_size");
    EXPECT_EQ(before["origins"][0]["from"], "line 2");
    for (const char* member : {"origins", "notes"}) {
      now.removeMember(member);
      before.removeMember(member);
    }
    EXPECT_EQ(now, before);
  }
}

TEST_F(ConfigCheckOf, IgnoresUnknownKeysOfOthersWhereItIsLenient) {
  const std::string path = file(R"({"train_batch_size": 8, "my_trainer": {"a": 1},
    "hybrid_engine": {"new_key": 1}, "autotuning": {"other": 2}})");
  const auto strict = run_penstock({"config", "check", path});
  const auto lenient = run_penstock({"config", "check", path, "--lenient"});

  EXPECT_EQ(strict.status, 2);
  EXPECT_NE(strict.err.find("3 errors"), std::string::npos) << strict.err;
  EXPECT_EQ(lenient.status, 0) << lenient.err;
  for (const char* note : {"note: my_trainer, line 1: unknown key, ignored\n",
                           "note: hybrid_engine.new_key, line 2: unknown key, ignored\n",
                           "note: autotuning.other, line 2: unknown key, ignored\n"}) {
    EXPECT_NE(lenient.err.find(note), std::string::npos) << note << lenient.err;
  }
  const auto misspelled = run_penstock({"config", "check", "--lenient", file(R"({"train_batch_size": 8,
    "zero_optimisation": {}, "gradient_cliping": 1, "zero_optimization": {"stge": 2}})")});
  EXPECT_NE(misspelled.err.find("3 errors"), std::string::npos) << misspelled.err;
}

TEST(ConfigCheck, TakesTheTextInBase64AsDeepSpeedDoes) {
  const auto result = run_penstock({"config", "check", "eyJ0cmFpbl9iYXRjaF9zaXplIjogOH0=", "--json"});

  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.json()["train_batch_size"].asInt(), 8);
  const auto wrong = run_penstock({"config", "check", "eyJ0cmFpbl9iYXRjaF9zaXplIjogOH0"});
  EXPECT_NE(wrong.err.find("eyJ0cmFpbl9iYXRjaF9zaXplIjogOH0"), std::string::npos) << wrong.err;
  EXPECT_EQ(wrong.status, 2);
}

TEST(ConfigCheck, TakesANameOfNoFileForNoBase64) {
  const auto result = run_penstock({"config", "check", "abcd"});  // of bytes that are no text

  EXPECT_EQ(result.status, 2);
  EXPECT_NE(result.err.find("not found"), std::string::npos) << result.err;
}

TEST(ConfigCheck, NamesACommandThatThereIsNot) {
  const auto result = run_penstock({"config", "chek", "file.json"});

  EXPECT_EQ(result.status, 2);
  EXPECT_EQ(result.err, "error: penstock config has no command chek\n  try     penstock config --help\n");
}

TEST(ConfigCheck, PrintsEveryErrorAndNothingElse) {
  const auto result = run_penstock({"config", "check", golden_case("misspelled_top_level.json")});

  EXPECT_EQ(result.status, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find("gradient_cliping, line 3: unknown key; did you mean \"gradient_clipping\"?"),
            std::string::npos);
  EXPECT_NE(result.err.find("zero_optimisation, line 4: unknown key; did you mean \"zero_optimization\"?"),
            std::string::npos);
}

TEST(ConfigCheck, ReportsMissingDirectoriesOnlyOnTheMachineThatNeedsThem) {
  const std::string file = golden_case("offload_nvme.json");

  const auto elsewhere = run_penstock({"config", "check", file});
  const auto here = run_penstock({"config", "check", file, "--here"});

  EXPECT_EQ(elsewhere.status, 0);
  EXPECT_NE(elsewhere.err.find("/local_nvme does not exist"), std::string::npos);
  EXPECT_EQ(here.status, 2);
  EXPECT_EQ(here.out, "");
}

TEST(ConfigCheck, NamesFilesThatARunCouldNotWriteOnlyOnTheMachineThatNeedsThem) {
  const penstock::test::ScratchDirectory scratch;
  const std::string in = scratch.path().string();
  std::ofstream(scratch.path() / "file") << "not a directory";
  const auto check = [&](const std::string& block, bool here) {
    const std::string config = in + "/config.json";
    std::ofstream(config) << R"({"train_batch_size": 1, )" << block << "}";
    return here ? run_penstock({"config", "check", config, "--here"})
                : run_penstock({"config", "check", config});
  };
  const auto penstock_block = [&](const char* key, const std::string& file) {
    return std::string(R"("penstock": {")") + key + R"(": ")" + file + R"("})";
  };
  const auto monitor = [&](const char* key, const std::string& directory) {
    return std::string("\"") + key + R"(": {"enabled": true, "output_path": ")" + directory + R"("})";
  };
  for (const auto& [block, names] :
       {std::pair(penstock_block("report_file", in), in),
        {penstock_block("report_file", in + "/none/report.json"), "none/report.json"},
        {penstock_block("timeline_file", in + "/none/timeline.json"), "penstock.timeline_file"},
        {penstock_block("report_file", in + "/config.json"), "that of a report"},
        {penstock_block("timeline_file", in + "/config.json"), "that of a timeline"},
        {monitor("csv_monitor", in + "/file/below"), "csv_monitor.output_path"},
        {monitor("tensorboard", in + "/file"), "tensorboard.output_path"}}) {
    const auto here = check(block, true), elsewhere = check(block, false);
    EXPECT_NE(here.status, 0) << block;
    EXPECT_NE(here.err.find(names), std::string::npos) << here.err;
    EXPECT_EQ(elsewhere.status, 0) << elsewhere.err;
    EXPECT_NE(elsewhere.err.find(names), std::string::npos) << elsewhere.err;
  }
  for (const std::string& block : {penstock_block("report_file", in + "/report.json"),
                                   penstock_block("timeline_file", in + "/timeline.json"),
                                   monitor("csv_monitor", in + "/made/later"), monitor("tensorboard", in)}) {
    const auto here = check(block, true);
    EXPECT_EQ(here.status, 0) << here.err;
  }
  const std::string same =
      R"("penstock": {"report_file": ")" + in + R"(/a", "timeline_file": ")" + in + R"(/./a"})";
  for (const bool here : {true, false}) {
    const auto refused = check(same, here);
    EXPECT_EQ(refused.status, 2) << refused.err;
    EXPECT_NE(refused.err.find("penstock.timeline_file"), std::string::npos) << refused.err;
  }
  EXPECT_EQ(check(R"("csv_monitor": {"enabled": true, "job_name": ""})", true).status, 0);
  EXPECT_FALSE(std::filesystem::exists(scratch.path() / "report.json"));
  EXPECT_FALSE(std::filesystem::exists(scratch.path() / "made"));
}

TEST(ConfigCheck, CallsAFileThatCannotBeReadBadUsage) {
  EXPECT_EQ(run_penstock({"config", "check", "/nonexistent/ds_config.json"}).status, 2);
  EXPECT_EQ(run_penstock({"config", "check"}).status, 2);
  EXPECT_EQ(
      run_penstock({"config", "check", golden_case("batch_train_only.json"), "--world-size", "0"}).status, 2);
}

TEST(ConfigKeys, PrintsThePageOfTheDocumentation) {
  std::ifstream file(PENSTOCK_CONFIGURATION_PAGE, std::ios::binary);
  ASSERT_TRUE(file.is_open());
  const std::string page{std::istreambuf_iterator<char>(file), {}};

  const auto result = run_penstock({"config", "keys"});

  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, page) << "update it: penstock config keys > docs/configuration.md";
}

TEST(ConfigKeys, ListsEveryKeyWithAllItsFields) {
  const auto result = run_penstock({"config", "keys", "--json"});

  ASSERT_EQ(result.status, 0) << result.err;
  std::map<std::string, Json::Value> keys;
  for (const Json::Value& key : result.json()) keys[key["key"].asString()] = key;
  const Json::Value& pin = keys["zero_optimization.offload_optimizer.pin_memory"];
  EXPECT_EQ(pin["takes"], "true or false");
  EXPECT_EQ(pin["default"], "true");
  EXPECT_EQ(pin["status"], "supported");
  EXPECT_EQ(pin["read_by"], "runtime");
  EXPECT_NE(pin["help"].asString().find("pinned"), std::string::npos);
  EXPECT_EQ(pin["bytes"], "pinned: the host budget; false: 32 MiB");
  EXPECT_EQ(keys["aio.use_gds"]["status"], "only the default");
  EXPECT_EQ(keys["aio.single_submit"]["status"], "no effect");
  EXPECT_EQ(keys["zero_optimization.prefetch_bucket_size"]["aliases"][0],
            "zero_optimization.stage3_prefetch_bucket_size");
  EXPECT_EQ(keys["optimizer.params.betas"]["default"], "[0.9, 0.999]");
}

TEST(CommandLine, FailsWhereItCannotPrint) {
  expect_output_errors(PENSTOCK_PROGRAM, {"config", "keys"});  // longer than a buffer
  expect_output_errors(PENSTOCK_PROGRAM, {"config", "keys", "--json"});
  expect_output_errors(PENSTOCK_PROGRAM, {"--version"});
}

TEST(CommandLine, ExplainsItselfAndRefusesWhatItDoesNotKnow) {
  EXPECT_EQ(run_penstock({"--help"}).status, 0);
  EXPECT_NE(run_penstock({"--help"}).out.find("estimate"), std::string::npos);
  EXPECT_EQ(run_penstock({"--version"}).status, 0);
  EXPECT_EQ(run_penstock({}).status, 2);
  EXPECT_EQ(run_penstock({"estimat"}).status, 2);
}

}  // namespace
}  // namespace penstock::test
