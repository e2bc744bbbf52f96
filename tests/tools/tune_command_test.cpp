#include "kit/scratch_directory.hpp"
#include "measure/storage_device.hpp"
#include "run_penstock.hpp"

#include <penstock/tiers/io/file_system.hpp>
#include <penstock/zero/config/config.hpp>

#include <gtest/gtest.h>

namespace penstock::test {
namespace {

class TuneCommand : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto why = measure::describe_storage(one_.path()).value().cached_because)
      GTEST_SKIP() << one_.path() << ": " << *why;
    const std::filesystem::path both[] = {one_.path(), other_.path()};
    if (auto room = measure::check_free_space(both, 3_GiB); !room) GTEST_SKIP() << room.error().message();
  }

  ScratchDirectory one_, other_;
};

TEST_F(TuneCommand, PrintsABlockThatAConfigurationTakes) {
  const auto result = run_penstock({"tune", "--path", one_.path().string(), "--seconds", "1"});

  EXPECT_EQ(result.status, 0) << result.err;
  for (const char* said : {"chosen: ", "resolution ", "spread", " depth"}) {
    EXPECT_NE(result.out.find(said), std::string::npos) << said << " in\n" << result.out;
  }
  EXPECT_NE(result.err.find(" of 1 s: "), std::string::npos) << "progress: " << result.err;
  const std::size_t block = result.out.find("\n{");
  ASSERT_NE(block, std::string::npos) << result.out;
  const auto config =
      zero::Config::from_text("{\"train_batch_size\": 8, " + result.out.substr(block + 2), "pasted", 1);
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_GE(config->aio_block_size, 1_MiB);
  EXPECT_LE(config->aio_block_size * config->aio_queue_depth, 64_MiB);
  EXPECT_EQ(one_.entry_count(), 0u);
}

TEST_F(TuneCommand, GivesDirectoriesOfOneDeviceEqualWeights) {
  const auto result = run_penstock(
      {"tune", "--path", one_.path().string(), "--path", other_.path().string(), "--seconds", "1", "--json"});

  EXPECT_EQ(result.status, 0) << result.err;
  const Json::Value json = result.json();
  ASSERT_EQ(json["paths"].size(), 2u) << result.out;
  const Json::Value& weights = json["config"]["penstock"]["path_weights"];
  ASSERT_EQ(weights.size(), 2u);
  Json::Value config = json["config"];
  config["train_batch_size"] = 8;
  config["zero_optimization"]["stage"] = 3;
  config["zero_optimization"]["offload_optimizer"]["device"] = "nvme";
  for (const auto& path : {one_.path(), other_.path()}) {
    config["zero_optimization"]["offload_optimizer"]["nvme_path"].append(path.string());
  }
  const auto taken = zero::Config::from_text(config.toStyledString(), "pasted", 1);
  ASSERT_TRUE(taken) << taken.error().message();
  EXPECT_EQ(taken->penstock.path_weights, (std::vector<double>{0.5, 0.5}));
  ASSERT_EQ(taken->penstock.path_limits.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_NEAR(taken->penstock.path_limits[i],
                json["paths"][static_cast<int>(i)]["mixed_gb_per_s"].asDouble() * 1e9, 0.5e6);
  }
  EXPECT_EQ(weights[0], 0.5);
  EXPECT_EQ(weights[1], 0.5);
  EXPECT_EQ(json["config"]["aio"]["block_size"].asUInt64() * json["config"]["aio"]["queue_depth"].asUInt64() %
                (1 << 20),
            0u);
  EXPECT_GT(json["read_gb_per_s"].asDouble(), 0);
  EXPECT_GE(json["read_write_rounds"].asUInt64(), 3u) << "although 1 s does not suffice";
  EXPECT_TRUE(json["read_spread"].isDouble());
  EXPECT_TRUE(json["write_spread"].isDouble());
  EXPECT_GT(json["resolution"].asDouble(), 0);
  EXPECT_NE(result.out.find("is on the same device as"), std::string::npos) << json["notes"];
}

TEST(TuneCommandOnATmpfs, DoesNotTuneForThePageCache) {
  if (tiers::real_file_system().type_name("/dev/shm") != "tmpfs") GTEST_SKIP() << "/dev/shm is no tmpfs";

  const auto result = run_penstock({"tune", "--path", "/dev/shm", "--seconds", "1"});

  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find("page cache"), std::string::npos) << result.err;
}

TEST(TuneCommandLine, RefusesBadArguments) {
  EXPECT_EQ(run_penstock({"tune"}).status, 2);
  for (const char* const seconds : {"0", "101", "nan", "soon"})
    EXPECT_EQ(run_penstock({"tune", "--path", "/tmp", "--seconds", seconds}).status, 2) << seconds;
  const auto twice = run_penstock({"tune", "--path", "/tmp", "--path", "/tmp/.", "--seconds", "1"});
  EXPECT_EQ(twice.status, 2);
  EXPECT_NE(twice.err.find("--path, wanted each directory once, got /tmp/. again"), std::string::npos)
      << twice.err;
  EXPECT_EQ(run_penstock({"tune", "--path", "/tmp", "--io-deadline", "0"}).status, 2);
}

TEST(TuneCommandLine, NamesADirectoryThatDoesNotExist) {
  const auto result = run_penstock({"tune", "--path", "/nonexistent/penstock"});

  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.err.find("/nonexistent/penstock"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace penstock::test
