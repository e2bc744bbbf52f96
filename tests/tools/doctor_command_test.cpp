#include "kit/child_process.hpp"
#include "kit/scratch_directory.hpp"
#include "run_penstock.hpp"

#include <penstock/tiers/io/file_system.hpp>

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <algorithm>
#include <fstream>
#include <map>
#include <set>

namespace penstock::test {
namespace {

/// By capability; each has one finding.
std::map<std::string, Json::Value> by_capability(const Json::Value& findings) {
  std::map<std::string, Json::Value> all;
  for (const Json::Value& finding : findings) {
    EXPECT_TRUE(all.emplace(finding["capability"].asString(), finding).second) << finding;
  }
  return all;
}

class Doctor : public testing::Test {
 protected:
  std::string directory() const { return directory_.path().string(); }
  /// A configuration that swaps to `path`, with more keys of the block "penstock".
  std::string config(const std::string& path, const std::string& penstock = "") {
    const std::filesystem::path file = files_.path() / "ds_config.json";
    std::ofstream(file) << R"({"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_optimizer":)"
                        << R"({"device": "nvme", "nvme_path": ")" << path << R"("}}, "penstock": {)"
                        << penstock << "}}";
    return file.string();
  }

  ScratchDirectory directory_, files_;
};

TEST_F(Doctor, SaysOfEachCapabilityWhetherItIsUsedWhyNotAndWhatToDo) {
  const auto result = run_penstock({"doctor", "--json", "--path", directory()});

  EXPECT_EQ(result.status, 0) << result.out << result.err;
  const auto findings = by_capability(result.json());
  const std::set<std::string> states{"used", "unused", "reduced", "unknown"};
  for (const auto& [capability, finding] : findings) {
    EXPECT_TRUE(states.contains(finding["state"].asString())) << finding;
    EXPECT_NE(finding["found"].asString(), "") << finding;
    EXPECT_EQ(finding["why"].asString().empty(), finding["state"] == "used") << finding;
    EXPECT_TRUE(finding["state"] != "reduced" || !finding["remedy"].asString().empty()) << finding;
  }
  for (const std::string capability : {"io_uring", "registered buffers", "libaio", "threads", "memlock limit",
                                       "huge pages", "host memory", "SIMD", "GPU", "NCCL", "MPI", "NUMA"}) {
    EXPECT_TRUE(findings.contains(capability)) << capability;
  }
  for (const std::string of_path : {"swap files", "direct I/O", "reserved space", "free space", "engine"}) {
    EXPECT_TRUE(findings.contains(of_path + " of " + directory())) << of_path;
  }
  EXPECT_EQ(directory_.entry_count(), 0u);
}

TEST_F(Doctor, GivesEachCapabilityOneLineEvenWhereAnErrorHasMany) {
  const std::vector<std::string> words{
      "doctor", "--path", directory(), "--path", "/nonexistent/penstock", "--config", config(directory())};
  auto with_json = words;
  with_json.push_back("--json");

  const auto lines = run_penstock(words);
  const auto json = run_penstock(with_json);

  EXPECT_EQ(static_cast<Json::ArrayIndex>(std::count(lines.out.begin(), lines.out.end(), '\n')),
            json.json().size())
      << lines.out;
}

TEST_F(Doctor, FailsWhenAPathCannotHoldSwapFiles) {
  const auto result = run_penstock({"doctor", "--path", "/nonexistent/penstock"});

  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.out.find("unusable  swap files of /nonexistent/penstock"), std::string::npos)
      << result.out;
}

TEST_F(Doctor, ExaminesThePathsOfAConfigurationWithItsIoSettings) {
  const auto result =
      run_penstock({"doctor", "--json", "--config", config(directory(), R"("io_engine": "threads")")});
  const auto missing = run_penstock({"doctor", "--config", config("/nonexistent/penstock")});

  EXPECT_EQ(result.status, 0) << result.out << result.err;
  const auto findings = by_capability(result.json());
  ASSERT_TRUE(findings.contains("engine of " + directory())) << result.out;
  EXPECT_EQ(findings.at("engine of " + directory())["found"], "threads, as the configuration says");
  EXPECT_EQ(missing.status, 1);
  EXPECT_NE(missing.out.find("unusable  swap files of /nonexistent/penstock"), std::string::npos)
      << missing.out;
}

TEST_F(Doctor, ExaminesTheDirectoryInWhichADurableRunMakesItsOwn) {
  const auto result =
      run_penstock({"doctor", "--json", "--config",
                    config("/nonexistent/penstock", R"("durable_directory": ")" + directory() + R"(/run")")});

  EXPECT_EQ(result.status, 0) << result.out << result.err;
  EXPECT_TRUE(by_capability(result.json()).contains("swap files of " + directory())) << result.out;
  EXPECT_EQ(directory_.entry_count(), 0u);
}

TEST_F(Doctor, FailsAtTheDeadlineOfAConfigurationWhereADirectoryDoesNotAnswer) {
  const std::string file = config(directory(), R"("io_deadline_seconds": 1)");
  const int status = in_child([&] {
    if (!hang_system_call(SYS_fallocate)) return 77;  // of the program too
    const auto result = run_penstock({"doctor", "--json", "--config", file});
    const Json::Value finding = by_capability(result.json())["swap files of " + directory()];
    if (result.status != 1 || finding["state"] != "unusable" || finding["remedy"].asString().empty())
      return 1;
    return finding["found"].asString().find("1 s without an answer") == std::string::npos ? 2 : 0;
  });
  if (status == 77) GTEST_SKIP() << "no seccomp to be had";

  EXPECT_EQ(status, 0);
}

TEST_F(Doctor, SaysThatTheSwapSpaceOfAConfigurationIsNotKnownWithoutItsModel) {
  const std::string file = config(directory());

  const auto findings = by_capability(run_penstock({"doctor", "--json", "--config", file}).json());

  ASSERT_TRUE(findings.contains("swap space of " + file));
  EXPECT_EQ(findings.at("swap space of " + file)["state"], "unknown");
}

TEST_F(Doctor, FailsWhenAConfigurationCannotWorkHere) {
  const auto misspelled =
      run_penstock({"doctor", "--json", "--config", config(directory(), R"("io_engin": 1)")});
  const auto greedy =
      run_penstock({"doctor", "--config", config(directory(), R"("host_budget": "4000TiB")")});
  const auto absent = run_penstock({"doctor", "--config", "/nonexistent/ds_config.json"});

  EXPECT_EQ(misspelled.status, 1);
  EXPECT_NE(misspelled.out.find("penstock.io_engin"), std::string::npos) << misspelled.out;
  EXPECT_TRUE(misspelled.json().isArray()) << misspelled.out;
  EXPECT_EQ(greedy.status, 1);
  EXPECT_NE(greedy.out.find("unusable  host budget of "), std::string::npos) << greedy.out;
  EXPECT_EQ(absent.status, 1);
}

TEST_F(Doctor, CountsTheBudgetsOfNumaNodesOnWhichRanksRun) {
  const auto budget_of = [&](const std::string& nodes) {
    const std::string file =
        config(directory(), R"("node_budgets": [4096, 4398046511104000, 8192], "rank_nodes": )" + nodes);
    return by_capability(
        run_penstock({"doctor", "--json", "--config", file}).json())["host budget of " + file];
  };

  EXPECT_EQ(budget_of("[0, 2]")["state"], "used");
  EXPECT_EQ(budget_of("[0, 2]")["found"].asString().find("12.0 KiB, and "), 0u) << budget_of("[0, 2]");
  EXPECT_EQ(budget_of("[0, 1]")["state"], "unusable");
}

TEST_F(Doctor, ReportsADirectoryWithoutDirectIo) {
  if (tiers::real_file_system().type_name("/dev/shm") != "tmpfs") GTEST_SKIP() << "/dev/shm is no tmpfs";

  const auto result = run_penstock({"doctor", "--json", "--path", "/dev/shm"});

  EXPECT_EQ(result.status, 0) << "it works, at a price";
  EXPECT_EQ(by_capability(result.json())["direct I/O of /dev/shm"]["state"], "reduced");
}

TEST_F(Doctor, RefusesBadArguments) {
  EXPECT_EQ(run_penstock({"doctor", "--paths", "/tmp"}).status, 2);
  EXPECT_EQ(run_penstock({"doctor", "--world-size", "0"}).status, 2);
}

}  // namespace
}  // namespace penstock::test
