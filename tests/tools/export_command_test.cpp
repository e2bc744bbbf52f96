#include "kit/cluster.hpp"
#include "kit/golden.hpp"
#include "kit/sanitizer.hpp"
#include "kit/scratch_directory.hpp"
#include "run_penstock.hpp"

#include <gtest/gtest.h>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace penstock::zero::test {
namespace {

using penstock::test::run_penstock;
using penstock::test::Safetensors;
using penstock::test::ScratchDirectory;

class ExportCommand : public testing::Test {
 protected:
  void run(const ModelLayout& model, std::uint32_t ranks, std::uint32_t steps) {
    RunOptions options{.ranks = ranks, .steps = steps, .model = model};
    options.config.offload_param.device = options.config.offload_optimizer.device = OffloadDevice::nvme;
    options.config.penstock.durable_directories = {path("one"), path("two")};
    options.after_steps = [](Engine& engine) -> Result<void> {
      PENSTOCK_TRY(engine.commit());
      return ok();
    };
    const RunResult result = train(options);
    ASSERT_FALSE(result.error) << result.error->message();
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
  expect({}, 1, "of which every rank has its part");
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
  const auto result =
      penstock::test::run_program("/bin/sh", {"-c", "ulimit -d 98304 && exec \"$0\" \"$@\"", PENSTOCK_PROGRAM,
                                              "export", path("one"), path("two"), path("out"), "--states"});

  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_GE(std::filesystem::file_size(path("out") + "/states.safetensors"), 12 * elements);
}

}  // namespace
}  // namespace penstock::zero::test
