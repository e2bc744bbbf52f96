#include "zero/exchange/import_states.hpp"

#include "committed_run.hpp"
#include "kit/safetensors_bytes.hpp"
#include "zero/exchange/export_commit.hpp"
#include "zero/exchange/states_description.hpp"
#include "zero/exchange/tensor_files.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace penstock::zero::exchange {
namespace {

using penstock::test::ScratchDirectory;
using penstock::test::write_file;
using test::CommittedRun;
using test::run_on_disk;
using test::RunOptions;
using test::RunResult;

/// Exports the commit of `run` and imports it into `directory`.
Result<ImportReport> exported_and_imported(const CommittedRun& run, const Config& config,
                                           const std::filesystem::path& directory) {
  PENSTOCK_TRY(export_commit(run.manifests(), {.directory = run.out(), .states = true}));
  return import_states({.states = run.out(), .config = config, .directories = {directory}});
}

/// `options`, continued from the commit in `directory`.
RunResult resume_in(const std::filesystem::path& directory, RunOptions options) {
  options.config.penstock.durable_directories = {directory};
  options.begins_where_restored = true;
  options.restore = [](Engine& engine) -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto resumed, engine.resume());
    return resumed ? ok() : Error::invalid_argument("resume_in").reason("there is no commit");
  };
  return train(options);
}

class ImportFormats : public testing::TestWithParam<test::RunFormat> {};

TEST_P(ImportFormats, ARunGoesOnFromAnExportAsIfItHadNotStopped) {
  RunOptions whole = run_on_disk();
  GetParam().set(whole.config);
  whole.steps = 6;
  if (GetParam().parameters == DType::fp16) {
    whole.config.loss_scale = 0;  // dynamic, and moved
    whole.config.dynamic_loss_scale = {.initial_scale_power = 4, .loss_scale_window = 2};
  }
  RunOptions first = whole;
  first.steps = 3;
  const CommittedRun run(first);
  const ScratchDirectory scratch;
  const auto directory = scratch.path() / "resumed";

  const auto report = exported_and_imported(run, whole.config, directory);

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->step, 3u);
  EXPECT_EQ(report->parameters, 6u);
  const RunResult expected = train(whole), resumed = resume_in(directory, whole);
  ASSERT_FALSE(expected.error) << expected.error->message();
  ASSERT_FALSE(resumed.error) << resumed.error->message();
  EXPECT_EQ(resumed.digest, expected.digest);
  EXPECT_EQ(resumed.outcomes.back().loss_scale, expected.outcomes.back().loss_scale);
  EXPECT_EQ(resumed.outcomes.back().step, 6u);
}

INSTANTIATE_TEST_SUITE_P(All, ImportFormats,
                         testing::Values(test::RunFormat{cpu_adam::StateFormat::fp32, DType::bf16},
                                         test::RunFormat{cpu_adam::StateFormat::fp32, DType::fp16},
                                         test::RunFormat{cpu_adam::StateFormat::fp32, DType::fp32},
                                         test::RunFormat{cpu_adam::StateFormat::split, DType::bf16},
                                         test::RunFormat{cpu_adam::StateFormat::moments, DType::fp16},
                                         test::RunFormat{cpu_adam::StateFormat::moments_bf16, DType::bf16}),
                         [](const auto& one) { return one.param.name(); });

TEST(ImportStates, TakesMuonsFrozenAndGroupSettings) {
  RunOptions whole = run_on_disk();
  whole.steps = 4;
  whole.config.optimizer.type = cpu_adam::Optimizer::muon;
  whole.model.units[1].parameters[2] = {
      .name = "out", .count = ElementCount(9000), .group = 2, .shape = {90, 100}};
  whole.model.units[2].parameters[0].group = 3;
  whole.model.groups.push_back({.use_muon = true, .learning_rate_factor = 0.5, .weight_decay = 0.25});
  whole.model.groups.push_back({.frozen = true});
  RunOptions first = whole;
  first.steps = 2;
  const CommittedRun run(first);
  const ScratchDirectory scratch;

  const auto report = exported_and_imported(run, whole.config, scratch.path() / "resumed");

  ASSERT_TRUE(report) << report.error().message();
  auto files = TensorFiles::open(run.out(), "states").value();
  EXPECT_TRUE(files.contains("first_moment.block.out"));
  EXPECT_FALSE(files.contains("second_moment.block.out")) << "Muon keeps one";
  EXPECT_TRUE(files.contains("second_moment.block.weight")) << "AdamW updates it";
  EXPECT_TRUE(files.contains("master.head.gain"));
  EXPECT_FALSE(files.contains("first_moment.head.gain")) << "it is frozen";
  const RunResult expected = train(whole), resumed = resume_in(scratch.path() / "resumed", whole);
  ASSERT_FALSE(resumed.error) << resumed.error->message();
  EXPECT_EQ(resumed.digest, expected.digest);
}

TEST(ImportStates, IsResumedByAnyNumberOfRanksAndOtherUnits) {
  const RunOptions options = run_on_disk();
  const CommittedRun run(options);
  ASSERT_TRUE(export_commit(run.manifests(),
                            {.directory = run.out(), .shard_max = ByteCount(30'000), .states = true}));

  for (const std::uint32_t ranks : {1u, 3u}) {
    const ScratchDirectory scratch;
    const auto directory = scratch.path() / "resumed";
    ASSERT_TRUE(import_states({.states = run.out(), .config = options.config, .directories = {directory}}));
    test::SavedStates saved(options.model);
    RunOptions other = options;
    other.ranks = ranks;
    other.steps = 3;
    other.after_steps = [&](Engine& engine) { return saved.save(engine); };
    const RunResult resumed = resume_in(directory, other);
    ASSERT_FALSE(resumed.error) << resumed.error->message();
    EXPECT_EQ(saved, run.states());
  }
}

// A copy of one export over another has not ended.
TEST(ImportStates, RefusesFilesOfTwoExports) {
  const RunOptions options = run_on_disk();
  const CommittedRun run(options), other(options);
  for (const CommittedRun* const one : {&run, &other})
    ASSERT_TRUE(export_commit(one->manifests(),
                              {.directory = one->out(), .shard_max = ByteCount(30'000), .states = true}));
  std::string last;
  for (const auto& one : std::filesystem::directory_iterator(other.out())) {
    const std::string name = one.path().filename().string();
    if (name.starts_with("states-")) last = std::max(last, name);
  }
  std::filesystem::copy_file(other.out() / last, run.out() / last,
                             std::filesystem::copy_options::overwrite_existing);
  const ScratchDirectory scratch;

  const auto mixed = import_states(
      {.states = run.out(), .config = options.config, .directories = {scratch.path() / "resumed"}});

  ASSERT_FALSE(mixed);
  EXPECT_EQ(mixed.error().code(), ErrorCode::invalid_argument);
  EXPECT_NE(mixed.error().message().find(last), std::string::npos) << mixed.error().message();
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST(ImportStates, TakesAsManyGroupsAsTheRunHas) {
  RunOptions options = run_on_disk();
  options.model.groups.resize(70, {.weight_decay = 0.5});
  options.model.units[1].parameters[0].group = 69;
  const CommittedRun run(options);
  const ScratchDirectory scratch;

  const auto report = exported_and_imported(run, options.config, scratch.path() / "resumed");

  EXPECT_TRUE(report) << report.error().message();
}

TEST(ImportStates, HasTheUnitsOfTheLayoutThatIsGiven) {
  RunOptions options = run_on_disk();
  options.model.units = {{.name = "layer",
                          .parameters = {{"attention.weight", ElementCount(3'000)},
                                         {"attention.bias", ElementCount(101)},
                                         {"mlp.weight", ElementCount(5'000)}}}};
  const CommittedRun run(options);
  ASSERT_TRUE(export_commit(run.manifests(), {.directory = run.out(), .states = true}));
  ModelLayout two = options.model;
  two.units = {{.name = "layer.attention",
                .parameters = {{"weight", ElementCount(3'000)}, {"bias", ElementCount(101)}}},
               {.name = "layer.mlp", .parameters = {{"weight", ElementCount(5'000)}}}};
  const ScratchDirectory scratch;
  const auto directory = scratch.path() / "resumed", again = scratch.path() / "again";

  const auto imported = import_states(
      {.states = run.out(), .config = options.config, .directories = {directory}, .layout = two});

  ASSERT_TRUE(imported) << imported.error().message();
  const auto manifest = RankDirectory::read_of({.directories = {directory}}, 0, 0, 1).value();
  ASSERT_EQ(manifest.model.units.size(), 2u);
  ASSERT_TRUE(export_commit({manifest}, {.directory = again, .states = true}));
  auto wanted = TensorFiles::open(run.out(), "states").value(),
       got = TensorFiles::open(again, "states").value();
  ASSERT_EQ(got.names(), wanted.names());
  for (const std::string& name : wanted.names()) {
    std::vector<float> a(101), b(101);  // the smallest parameter
    ASSERT_TRUE(wanted.read(name, 0, a));
    ASSERT_TRUE(got.read(name, 0, b));
    EXPECT_EQ(a, b) << name;
  }
}

/// A directory of an export with states, and what is refused of it.
class ImportRefusals : public testing::Test {
 protected:
  ImportRefusals() : run_(run_on_disk()) {
    EXPECT_TRUE(export_commit(run_.manifests(), {.directory = run_.out(), .states = true}));
  }
  ImportOptions options() const {
    return {.states = run_.out(), .config = run_on_disk().config, .directories = {directory()}};
  }
  std::filesystem::path directory() const { return scratch_.path() / "resumed"; }
  std::filesystem::path copies() const { return scratch_.path() / "copies"; }
  const ModelLayout& model() const { return run_.model(); }
  void expect_refused(const ImportOptions& options, ErrorCode code, const std::string& words) const {
    const auto refused = import_states(options);
    ASSERT_FALSE(refused) << words;
    EXPECT_EQ(refused.error().code(), code) << refused.error().message();
    EXPECT_NE(refused.error().message().find(words), std::string::npos) << refused.error().message();
    EXPECT_FALSE(std::filesystem::exists(directory()));
  }
  /// A file without tensors, whose metadata is that of the export but for `key`; without it, if `value` is empty.
  std::filesystem::path with_metadata(const std::string& key, const std::string& value) const {
    auto metadata = SafetensorsHeader::read(run_.out() / "states.safetensors").value().metadata;
    metadata[key] = value;
    if (value.empty()) metadata.erase(key);
    std::string json = R"({"__metadata__":{)";
    for (const auto& [name, text] : metadata) {
      if (json.back() != '{') json.append(",");
      json.append("\"").append(name).append("\":\"");
      for (const char c : text) json.append(c == '"' || c == '\\' ? "\\" : "").append(1, c);
      json.append("\"");
    }
    json.append(R"(},"master.x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})");
    return write_file(scratch_.path() / "states.safetensors", penstock::test::with_length(json) + "0000");
  }

 private:
  CommittedRun run_;
  ScratchDirectory scratch_;
};

TEST_F(ImportRefusals, AnotherOptimizerOrOtherParameters) {
  auto lion = options();
  lion.config.optimizer.type = cpu_adam::Optimizer::lion;
  expect_refused(lion, ErrorCode::invalid_config, "optimizer.type");
  auto custom = options();
  custom.config.optimizer.type = cpu_adam::Optimizer::custom_one_moment;
  expect_refused(custom, ErrorCode::invalid_config, "Engine::restore()");
  auto renamed = options();
  renamed.layout = model();
  renamed.layout->units[1].parameters[1].name = "biases";
  expect_refused(renamed, ErrorCode::not_found, "master.block.biases");
  auto fewer = options();
  fewer.layout = model();
  fewer.layout->units[1].parameters.pop_back();
  expect_refused(fewer, ErrorCode::invalid_argument, "block.out");
  auto groups = options();
  groups.layout = model();
  groups.layout->groups.resize(7);
  expect_refused(groups, ErrorCode::invalid_argument, "groups");
}

TEST_F(ImportRefusals, FilesWithoutADescription) {
  const ScratchDirectory empty;
  auto wrong = options();
  wrong.states /= "model.safetensors";
  expect_refused(wrong, ErrorCode::invalid_argument, "metadata penstock.version");
  wrong.states = empty.path();
  expect_refused(wrong, ErrorCode::not_found, "states.safetensors.index.json");
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
           {"penstock.version", ""},
           {"penstock.layout", ""},
           {"penstock.layout", "{}"},
           {"penstock.groups", ""},
           {"penstock.groups", "[]"},
           {"penstock.groups", "[{}, {}]"},
           {"penstock.groups", "[[[[[[[[[[[["},
           {"penstock.groups", R"([{"frozen":false,"use_muon":false,"learning_rate_factor":1},)"
                               R"({"frozen":false,"use_muon":false,"learning_rate_factor":1,"betas":[1]}])"},
           {"penstock.optimizer", ""},
           {"penstock.optimizer", "sgd"},
           {"penstock.step", ""},
           {"penstock.step", "-1"},
           {"penstock.step", "3x"},
           {"penstock.loss_scaler", ""},
           {"penstock.loss_scaler", R"({"scale":1})"}}) {
    wrong.states = with_metadata(key, value);
    expect_refused(
        wrong,
        key == "penstock.layout" && !value.empty() ? ErrorCode::invalid_config : ErrorCode::invalid_argument,
        "metadata " + key);
  }
  wrong.states = with_metadata("penstock.version", "9");
  expect_refused(wrong, ErrorCode::unsupported, "penstock.version");
}

/// A number that no run goes on with is found in the middle of an import, which can be repeated.
TEST_F(ImportRefusals, OneThatHasFailedMayBeRepeated) {
  auto wrong = options();
  std::filesystem::create_directory(wrong.states = copies());
  for (const auto& one : std::filesystem::directory_iterator(options().states))
    std::filesystem::copy(one.path(), wrong.states / one.path().filename());
  {
    std::fstream file(wrong.states / "states.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-4, std::ios::end);
    file.write("\xff\xff\xff\xff", 4);  // not a number
  }

  const auto refused = import_states(wrong);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument) << refused.error().message();
  const auto repeated = import_states(options());
  EXPECT_TRUE(repeated) << repeated.error().message();
}

TEST_F(ImportRefusals, ADirectoryThatARunHasUsed) {
  ASSERT_TRUE(import_states(options()));

  const auto refused = import_states(options());

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::already_exists) << refused.error().message();
  EXPECT_NE(refused.error().message().find(directory().string()), std::string::npos);
}

}  // namespace
}  // namespace penstock::zero::exchange
