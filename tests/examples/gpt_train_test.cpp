// Runs gpt_train as a user does, with what users get wrong.
#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace {

struct Outcome {
  int status = -1;
  std::string output;  ///< standard output and error
};

Outcome run(const std::string& arguments) {
  const std::string command = std::string(GPT_TRAIN) + " " + arguments + " 2>&1 < /dev/null";
  Outcome outcome;
  FILE* pipe = ::popen(command.c_str(), "r");
  std::array<char, 4096> buffer;
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    outcome.output.append(buffer.data(), count);
  }
  const int status = ::pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

std::string digest_in(const std::string& output) {
  const std::string label = "digest of all master weights  ";
  const auto at = output.find(label);
  return at == std::string::npos ? "" : output.substr(at + label.size(), 32);
}

class GptTrain : public testing::Test {
 protected:
  /// A small model on the scratch directory; `change` is put into the configuration.
  std::string arguments(const std::string& change = "", const std::string& key = "zero_optimization") {
    const std::string text_file = (directory_.path() / "text").string();
    std::ofstream text(text_file);
    for (int i = 0; i < 4000; ++i) text << "the quick brown fox jumps over the lazy dog " << i << "\n";
    const std::string config_file = (directory_.path() / "config.json").string();
    std::ofstream config(config_file);
    config
        << R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "bf16": {"enabled": true},
      "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
      ")"
        << key << R"(": {"stage": 3,
        "offload_param": {"device": "nvme", "nvme_path": ")"
        << swap() << R"("},
        "offload_optimizer": {"device": "nvme", "nvme_path": ")"
        << swap() << R"("}})" << change << "}";
    return "--layers 1 --width 64 --heads 2 --context 32 --steps 2 --text " + text_file + " --config " +
           config_file;
  }
  std::string swap() const { return swap_.path().string(); }

  void expect_refused(const Outcome& outcome, int status, std::initializer_list<const char*> words) {
    EXPECT_EQ(outcome.status, status) << outcome.output;
    EXPECT_NE(outcome.output.find("error: "), std::string::npos) << outcome.output;
    for (const char* word : words)
      EXPECT_NE(outcome.output.find(word), std::string::npos) << word << " in\n" << outcome.output;
    EXPECT_EQ(outcome.output.find("step 1/"), std::string::npos) << "no partial claims\n" << outcome.output;
    EXPECT_EQ(swap_.entry_count(), 0u);
  }

  penstock::test::ScratchDirectory directory_, swap_;
};

TEST_F(GptTrain, TrainsOnDiskToTheDigestItHasInMemory) {
  const Outcome outcome = run(arguments() + " --check");

  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("check passed"), std::string::npos) << outcome.output;
  EXPECT_EQ(swap_.entry_count(), 0u);
}

TEST_F(GptTrain, NamesAMisspelledKeyAndTheNearestSpelling) {
  expect_refused(run(arguments("", "zero_optimisation")), 2,
                 {"zero_optimisation", "zero_optimization", "line"});
}

TEST_F(GptTrain, NamesAKeyOfTheWrongType) {
  expect_refused(run(arguments(R"(, "gradient_clipping": "much")")), 2, {"gradient_clipping", "much"});
}

TEST_F(GptTrain, NamesADirectoryThatIsMissing) {
  expect_refused(run(arguments() + " --nvme-path /nonexistent/disk"), 2, {"/nonexistent/disk"});
}

TEST_F(GptTrain, NamesADirectoryThatItMayNotWriteTo) {
  expect_refused(run(arguments() + " --nvme-path /proc/self"), 2, {"/proc/self"});
}

TEST_F(GptTrain, SaysHowMuchADiskLacksBeforeItStarts) {
  const std::string small = (directory_.path() / "small").string();
  ASSERT_EQ(::mkdir(small.c_str(), 0700), 0);
  if (::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=300k") != 0)
    GTEST_SKIP() << "mounting a small tmpfs is not allowed here";

  const Outcome outcome = run(arguments() + " --nvme-path " + small);
  ::umount(small.c_str());

  expect_refused(outcome, 1, {"free", "wanted"});
}

TEST_F(GptTrain, RefusesABudgetThatCannotMakeProgress) {
  expect_refused(run(arguments(R"(, "penstock": {"host_budget": "100KiB"})")), 2,
                 {"host budget is too small", "wanted", "penstock.host_budget"});
}

TEST_F(GptTrain, RefusesATextThatIsMissingOrEmpty) {
  const std::string empty = (directory_.path() / "empty").string();
  std::ofstream(empty).flush();

  expect_refused(run(arguments() + " --text /nonexistent/text"), 2, {"/nonexistent/text"});
  expect_refused(run(arguments() + " --text " + empty), 2, {"empty"});
}

TEST_F(GptTrain, LetsTwoRunsShareADirectory) {
  const std::string both = arguments();
  const std::string alone = digest_in(run(both).output);
  ASSERT_FALSE(alone.empty());

  const std::string command = "(" + std::string(GPT_TRAIN) + " " + both + " > " +
                              (directory_.path() / "other").string() + " 2>&1 &) ; true";
  ASSERT_EQ(std::system(command.c_str()), 0);
  const Outcome here = run(both);

  EXPECT_EQ(digest_in(here.output), alone) << here.output;
  EXPECT_EQ(swap_.entry_count(), 0u);
}

TEST_F(GptTrain, LeavesNothingBehindWhenItIsKilled) {
  const std::string all = arguments() + " --steps 100000";
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(pipe[1], 1);
    ::execl("/bin/sh", "sh", "-c", ("exec " + std::string(GPT_TRAIN) + " " + all).c_str(), nullptr);
    ::_exit(127);
  }
  ::close(pipe[1]);
  // It is in the middle of training once it has reported a step.
  std::string output;
  char byte = 0;
  while (output.find("step 2/") == std::string::npos && ::read(pipe[0], &byte, 1) == 1) output += byte;

  ASSERT_EQ(::kill(child, SIGKILL), 0);
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(pipe[0]);

  EXPECT_NE(output.find("step 2/"), std::string::npos) << output;
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(swap_.entry_count(), 0u);
}

}  // namespace
