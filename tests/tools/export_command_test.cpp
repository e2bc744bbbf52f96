#include "kit/cluster.hpp"
#include "kit/golden.hpp"
#include "kit/sanitizer.hpp"
#include "kit/scratch_directory.hpp"
#include "run_penstock.hpp"

#include <penstock/zero/exchange/safetensors_weights.hpp>

#include <gtest/gtest.h>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace penstock::zero::test {
namespace {

using penstock::test::ProgramResult;
using penstock::test::run_penstock;
using penstock::test::run_program;
using penstock::test::Safetensors;
using penstock::test::ScratchDirectory;

class ExportCommand : public testing::Test {
 protected:
  RunResult run(const ModelLayout& model, std::uint32_t ranks, std::uint32_t steps) {
    RunOptions options{.ranks = ranks, .steps = steps, .model = model};
    options.config.offload_param.device = options.config.offload_optimizer.device = OffloadDevice::nvme;
    options.config.penstock.durable_directories = {path("one"), path("two")};
    options.after_steps = [](Engine& engine) -> Result<void> {
      PENSTOCK_TRY(engine.commit());
      return ok();
    };
    RunResult result = train(options);
    EXPECT_FALSE(result.error) << result.error->message();
    return result;
  }
  std::string path(const std::string& name) const { return (scratch_.path() / name).string(); }

 private:
  ScratchDirectory scratch_;
};

TEST_F(ExportCommand, WritesWeightsAndSaysWhere) {
  run(small_model(), 2, 3);

  const auto json = run_penstock({"export", path("one"), path("two"), path("out"), "--json", "--dtype",
                                  "fp32", "--shard-size", "100kB"})
                        .json();
  const auto text = run_penstock({"export", path("one"), path("two"), path("text")});

  EXPECT_EQ(json["step"].asUInt(), 3u) << json;
  EXPECT_EQ(json["dtype"].asString(), "fp32");
  EXPECT_EQ(json["tensors"].asUInt(), 6u);
  EXPECT_EQ(json["bytes"].asUInt64(), 4 * small_model().element_count().value());
  ASSERT_EQ(json["files"].size(), 4u);
  EXPECT_TRUE(json["files"][3].asString().ends_with("/out/model.safetensors.index.json")) << json;
  for (const Json::Value& file : json["files"]) EXPECT_TRUE(std::filesystem::exists(file.asString()));
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_NE(text.out.find(path("text") + "/model.safetensors"), std::string::npos) << text.out;
  EXPECT_TRUE(Safetensors(path("text") + "/model.safetensors").contains("embed.table"));
}

TEST_F(ExportCommand, StatesAreImportedIntoANewDirectory) {
  run(small_model(), 2, 3);
  ASSERT_EQ(run_penstock({"export", path("one"), path("two"), path("out"), "--states"}).status, 0);
  const auto write = [&](const char* name, const char* text) {
    std::ofstream(path(name)) << text;
    return path(name);
  };
  const auto config = write("ds_config.json", R"({"train_batch_size": 4, "bf16": {"enabled": true},
                                                  "optimizer": {"type": "AdamW"}})");
  const auto lion = write("lion.json", R"({"train_batch_size": 1, "optimizer": {"type": "Lion"}})");
  const auto layout = write("layout.json", R"({"units": [{"name": "w", "parameters": []}]})");

  const auto json =
      run_penstock({"import", path("out"), config, path("new"), "--ranks", "4", "--json"}).json();
  const auto again = run_penstock({"import", path("out"), config, path("new")});
  const auto other = run_penstock({"import", path("out"), lion, path("lion")});
  const auto no_layout = run_penstock({"import", path("out"), config, path("lion"), "--layout", layout});

  const auto elsewhere = write("elsewhere.json", R"({"train_batch_size": 4, "bf16": {"enabled": true},
      "optimizer": {"type": "AdamW"}, "penstock": {"durable_directory": "/run9"}})");
  const auto misnamed = run_penstock({"import", path("out"), elsewhere, path("lion"), "--ranks", "4"});
  EXPECT_EQ(misnamed.status, 2) << misnamed.out;
  EXPECT_NE(misnamed.err.find("wanted /run9, got " + path("lion")), std::string::npos) << misnamed.err;

  EXPECT_EQ(json["step"].asUInt(), 3u) << json;
  EXPECT_EQ(json["parameters"].asUInt(), 6u);
  EXPECT_EQ(json["bytes"].asUInt64(), 12 * small_model().element_count().value());
  const auto inspected = run_penstock({"inspect", path("new"), "--json"}).json()["commits"][0];
  EXPECT_EQ(inspected["step"].asUInt(), 3u) << inspected;
  EXPECT_EQ(inspected["ranks"].asUInt(), 1u);
  EXPECT_EQ(run_penstock({"verify", path("new")}).status, 0);
  EXPECT_EQ(again.status, 1);
  EXPECT_NE(again.err.find(path("new")), std::string::npos) << again.err;
  EXPECT_EQ(other.status, 2);
  EXPECT_NE(other.err.find("optimizer.type"), std::string::npos) << other.err;
  EXPECT_EQ(no_layout.status, 2);
  EXPECT_NE(no_layout.err.find(layout), std::string::npos) << no_layout.err;
}

/// With the package safetensors, which scripts/test installs.
class PythonsSafetensors : public ExportCommand {
 protected:
  void SetUp() override {
    if (std::filesystem::exists(PENSTOCK_PYTHON) &&
        run_program(PENSTOCK_PYTHON, {"-c", "import numpy, safetensors"}).status == 0)
      return;
    GTEST_SKIP() << "Python's packages safetensors and numpy are not installed in " PENSTOCK_PYTHON
                    ": scripts/test installs them, if pip reaches its index";
  }
  static ProgramResult python(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), PENSTOCK_SAFETENSORS_OF_PYTHON);
    return run_program(PENSTOCK_PYTHON, arguments);
  }
};

TEST_F(PythonsSafetensors, ReadWhatIsExported) {
  ModelLayout model = small_model();
  model.units[1].parameters[2].shape = {9, 10, 100};
  const RunResult trained = run(model, 2, 3);

  for (const auto& [dtype, name] : {std::pair("bf16", "BF16"), {"fp32", "F32"}}) {
    for (const char* size : {"5GB", "30kB"}) {
      const std::string out = path(dtype + std::string(size));
      ASSERT_EQ(
          run_penstock({"export", path("one"), path("two"), out, "--dtype", dtype, "--shard-size", size})
              .status,
          0);
      const auto read = python({"read", out, path("values")});
      ASSERT_EQ(read.status, 0) << read.err;

      const Json::Value tensors = read.json();
      std::vector<float> values(std::filesystem::file_size(path("values")) / sizeof(float));
      std::ifstream(path("values"), std::ios::binary)
          .read(reinterpret_cast<char*>(values.data()),
                static_cast<std::streamsize>(values.size() * sizeof(float)));
      EXPECT_EQ(tensors.getMemberNames(),
                (std::vector<std::string>{"block.bias", "block.out", "block.weight", "embed.positions",
                                          "embed.table", "head.gain"}));
      EXPECT_EQ(tensors["block.out"]["shape"].size(), 3u);
      EXPECT_EQ(tensors["block.out"]["dtype"].asString(), name);
      if (std::string(dtype) == "fp32") continue;  // the run gathers parameters of 16 bits
      std::vector<float> wanted;
      for (const std::size_t number : {3u, 4u, 2u, 1u, 0u, 5u})  // by name
        wanted.insert(wanted.end(), trained.parameters[number].begin(), trained.parameters[number].end());
      EXPECT_EQ(values, wanted);
    }
  }
}

TEST_F(PythonsSafetensors, WriteWhatBecomesInitialValues) {
  ModelLayout model;
  model.units = {{.name = "first", .parameters = {{"weight", ElementCount(6), 0, {2, 3}}}},
                 {.name = "second", .parameters = {{"bias", ElementCount(4)}}}};
  std::filesystem::create_directory(path("models"));
  const auto written = python({"write", path("models")});
  ASSERT_EQ(written.status, 0) << written.err;

  for (const char* file : {"/float32.safetensors", "/float64.safetensors", "/float16.safetensors", ""}) {
    auto weights = SafetensorsWeights::open(model, {.path = path("models") + file});
    ASSERT_TRUE(weights) << weights.error().message();
    std::vector<float> first(6), second(4);
    ASSERT_TRUE(weights->read({0, 0}, 0, first));
    ASSERT_TRUE(weights->read({1, 0}, 0, second));
    EXPECT_EQ(first, (std::vector<float>{1, 2, 3, 4, 5, 6})) << file;
    EXPECT_EQ(second, (std::vector<float>{0, 8, 16, 24})) << file;
  }
}

TEST_F(ExportCommand, RefusesWhatItCannotDo) {
  run(small_model(), 2, 1);
  const auto expect = [&](std::vector<std::string> options, int status, const std::string& words) {
    std::vector<std::string> arguments = {"export", path("one"), path("two"), path("out")};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const auto result = run_penstock(arguments);
    EXPECT_EQ(result.status, status) << result.out;
    EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
    EXPECT_FALSE(std::filesystem::exists(path("out") + "/model.safetensors"));
  };

  expect({"--dtype", "fp64"}, 2, "fp64");
  expect({"--shard-size", "0"}, 2, "--shard-size");
  expect({"--shard-size", "many"}, 2, "--shard-size");
  expect({"--engine", "1"}, 1, "no commit of engine 1");
  std::filesystem::remove_all(path("one") + "/rank0001");
  expect({}, 1, "commit 1 of 2 ranks has no part of rank 1");
  std::filesystem::create_directory(path("out"));
  std::ofstream(path("out") + "/mine") << "text";
  const auto none = run_penstock({"export", path("none"), path("out")});
  EXPECT_EQ(none.status, 1);
  EXPECT_NE(none.err.find(path("none")), std::string::npos) << none.err;
}

TEST_F(ExportCommand, TakesLessMemoryThanOneTensor) {
  if (penstock::test::any_sanitizer) GTEST_SKIP() << "a sanitizer takes memory of its own";
  constexpr std::uint64_t elements = 32 << 20;  // 128 MiB in fp32
  ModelLayout model;
  model.units = {{.name = "wide", .parameters = {{"weight", ElementCount(elements)}}}};
  run(model, 1, 0);

  // With 96 MiB of memory.
  const auto result = run_program("/bin/sh", {"-c", "ulimit -d 98304 && exec \"$0\" \"$@\"", PENSTOCK_PROGRAM,
                                              "export", path("one"), path("two"), path("out"), "--states"});

  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_GE(std::filesystem::file_size(path("out") + "/states.safetensors"), 12 * elements);
}

}  // namespace
}  // namespace penstock::zero::test
