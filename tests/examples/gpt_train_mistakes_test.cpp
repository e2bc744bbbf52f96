// Typical mistakes of users of gpt_train, and machines that cannot run it.
#include "gpt_train_fixture.hpp"

#include "kit/sanitizer.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace gpt::test {
namespace {

TEST_F(GptTrain, NamesAMisspelledKeyAndTheNearestSpelling) {
  expect_refused(train(arguments("", "zero_optimisation")), 2,
                 {"zero_optimisation", "zero_optimization", "line"});
}

TEST_F(GptTrain, NamesAKeyOfTheWrongType) {
  expect_refused(train(arguments(R"(, "gradient_clipping": "much")")), 2, {"gradient_clipping", "much"});
}

TEST_F(GptTrain, NamesADirectoryThatIsMissing) {
  expect_refused(train(arguments() + " --nvme-path /nonexistent/disk"), 2, {"/nonexistent/disk"});
}

TEST_F(GptTrain, NamesADirectoryThatItMayNotWriteTo) {
  expect_refused(train(arguments() + " --nvme-path /proc/self"), 2, {"/proc/self"});
}

TEST_F(GptTrain, SaysHowMuchADiskLacksBeforeItStarts) {
  const std::string small = (directory_.path() / "small").string();
  ASSERT_EQ(::mkdir(small.c_str(), 0700), 0);
  if (::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=300k") != 0)
    GTEST_SKIP() << "mounting a small tmpfs is not allowed here";

  const Outcome outcome = train(arguments() + " --nvme-path " + small);
  ::umount(small.c_str());

  expect_refused(outcome, 1, {"free", "wanted"});
}

TEST_F(GptTrain, RefusesABudgetThatCannotMakeProgress) {
  expect_refused(train(arguments(R"(, "penstock": {"host_budget": "100KiB"})")), 2,
                 {"host budget is too small", "wanted", "penstock.host_budget"});
}

TEST_F(GptTrain, RefusesARunThatTheMachinesMemoryCannotHold) {
  if (penstock::test::any_sanitizer) GTEST_SKIP() << "a sanitizer's memory counts as the run's";
  const std::string file = (directory_.path() / "meminfo").string();
  std::ofstream(file) << "MemTotal: 1000000 kB\nMemAvailable: 60000 kB\n";
  // In a mount namespace of this process, so that nothing else sees the file.
  if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount(file.c_str(), "/proc/meminfo", nullptr, MS_BIND, nullptr) != 0) {
    GTEST_SKIP() << "mounting over /proc/meminfo is not allowed here";
  }

  const Outcome outcome = train(arguments());
  ::umount("/proc/meminfo");

  expect_refused(outcome, 1,
                 {"host memory does not suffice", "58.6 MiB available", "short", "/proc/meminfo"});
}

TEST_F(GptTrain, RefusesFilesThatTwoOptionsNameAndDirectories) {
  const std::string file = (directory_.path() / "one").string(), folder = directory_.path().string();
  expect_refused(train(arguments() + " --json " + file + " --trace " + file), 2,
                 {"--json and --trace both name it"});
  expect_refused(train(arguments() + " --trace " + file + " --save " + folder + "/./one"), 2,
                 {"--trace and --save both name it"});
  for (const char* option : {" --json ", " --trace ", " --save "})
    expect_refused(train(arguments() + option + folder), 2, {folder.c_str(), "it is a directory"});
}

// Files that are there are replaced when they are complete.
TEST_F(GptTrain, LeavesFilesWhereItCannotStart) {
  const std::string json = (directory_.path() / "json").string(),
                    trace = (directory_.path() / "trace").string();
  for (const std::string& file : {json, trace}) std::ofstream(file) << "old";
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
  const Outcome outcome = train(arguments() + " --cuda --ranks 1 --json " + json + " --trace " + trace);
  ::unsetenv("CUDA_VISIBLE_DEVICES");

  EXPECT_NE(outcome.status, 0);
  for (const std::string& file : {json, trace}) {
    std::string contents;
    std::getline(std::ifstream(file), contents);
    EXPECT_EQ(contents, "old");
    EXPECT_FALSE(std::filesystem::exists(file + ".part"));
  }
}

TEST_F(GptTrain, IsOneRankWhereALauncherSaysSo) {
  EXPECT_NE(train(arguments() + " --rank 0 --world 1").output.find("1 ranks"), std::string::npos);
}

TEST_F(GptTrain, RefusesATextThatIsMissingOrEmpty) {
  const std::string empty = (directory_.path() / "empty").string();
  std::ofstream(empty).flush();

  expect_refused(train(arguments() + " --text /nonexistent/text"), 2, {"/nonexistent/text"});
  expect_refused(train(arguments() + " --text " + empty), 2, {"empty"});
}

TEST_F(GptTrain, RefusesSizesThatNoMachineHas) {
  expect_refused(train(arguments() + " --width 1000000"), 2, {"width", "1 to 65536"});
  expect_refused(train(arguments() + " --layers 4294967295"), 2, {"layers", "1 to 4096"});
  expect_refused(train(arguments() + " --heads 0"), 2, {"heads"});
  expect_refused(train(with_replaced(arguments() + " --accumulate-by-layer", "steps\": 2", "steps\": 1025")),
                 2, {"all micro-batches of a step", "at most 1024", "gradient_accumulation_steps"});
  expect_refused(train(arguments() + " --context 4000000000"), 2, {"context"});
  expect_refused(train(arguments() + " --text /dev/zero"), 2, {"/dev/zero", "too long"});
  expect_refused(train(arguments() + " --text /proc/self/mem"), 1, {"/proc/self/mem", "Input/output error"});
}

TEST_F(GptTrain, RefusesALimitOnAddressSpaceThatItCannotRunWith) {
  if (penstock::test::any_sanitizer) GTEST_SKIP() << "a sanitizer needs more address space";
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  const rlimit small{800'000'000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &small), 0);

  const Outcome outcome = train(arguments());
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);

  expect_refused(outcome, 1, {"limit on address space", "ulimit -v"});
}

}  // namespace
}  // namespace gpt::test
