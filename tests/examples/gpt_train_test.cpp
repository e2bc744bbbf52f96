// Runs gpt_train as a user does.
#include "gpt_train_fixture.hpp"

#include "kit/sanitizer.hpp"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

namespace gpt::test {
namespace {

TEST_F(GptTrain, FailsWhereItCannotPrint) {
  expect_output_error("> /dev/full");
  expect_output_error(">&-");
}

TEST_F(GptTrain, TrainsOnDiskToTheDigestItHasInMemory) {
  const Outcome outcome = train(arguments() + " --check");

  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("check passed"), std::string::npos) << outcome.output;
  EXPECT_EQ(swap_.entry_count(), 0u);
}

TEST_F(GptTrain, TracesStreamsAndDisksWithoutChangingTheResult) {
  const std::string file = (directory_.path() / "trace.json").string();
  const Outcome plain = train(arguments()), traced = train(arguments() + " --trace " + file);

  EXPECT_EQ(traced.status, 0) << traced.output;
  EXPECT_EQ(digest_in(traced.output), digest_in(plain.output));
  for (const char* const words :
       {"rank 1", "compute", "idle", "parameters", "room for gradients", "step", "disk 1"}) {
    EXPECT_NE(traced.output.find(words), std::string::npos) << words << " in\n" << traced.output;
  }
  std::ifstream in(file);
  const std::string trace{std::istreambuf_iterator<char>(in), {}};
  for (const char* const name : {"forward block.0", "backward head", "wait for parameters of embed",
                                 "copy to device", "copy to host", "read and write"}) {
    EXPECT_NE(trace.find(std::string("\"name\": \"") + name), std::string::npos) << name;
  }
  expect_refused(train(arguments() + " --trace /nonexistent/trace.json"), 2, {"/nonexistent/trace.json"});
}

TEST_F(GptTrain, WritesItsFiguresAsJson) {
  const std::string file = (directory_.path() / "report.json").string();
  const Outcome outcome = train(arguments() + " --json " + file);

  EXPECT_EQ(outcome.status, 0) << outcome.output;
  std::ifstream in(file);
  const std::string json{std::istreambuf_iterator<char>(in), {}};
  EXPECT_NE(json.find("\"digest\": \"" + digest_in(outcome.output) + "\""), std::string::npos) << json;
  for (const char* const words :
       {"\"tokens_per_step\": 128", "{\"loss\": 5.", "\"update_seconds\": ", "\"skipped\": false}",
        "{\"tier\": \"device\", \"purpose\": \"full gradients\"", "\"free_min_bytes\": "}) {
    EXPECT_NE(json.find(words), std::string::npos) << words << " in\n" << json;
  }
  expect_refused(train(arguments() + " --json /nonexistent/report.json"), 2, {"/nonexistent/report.json"});
}

TEST_F(GptTrain, MeasuresTheDiskWithAFileForWhichThereIsRoom) {
  const std::string small = (directory_.path() / "small").string();
  ASSERT_EQ(::mkdir(small.c_str(), 0700), 0);
  for (const auto& [size, said] : {std::pair("size=110m", "disk limit, measured now"),
                                   std::pair("size=90m", "the disk is not measured: too little is free")}) {
    if (::mount("tmpfs", small.c_str(), "tmpfs", 0, size) != 0)
      GTEST_SKIP() << "mounting a small tmpfs is not allowed here";

    const Outcome outcome = train(arguments() + " --nvme-path " + small);
    ::umount(small.c_str());

    EXPECT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_NE(outcome.output.find(said), std::string::npos) << size << "\n" << outcome.output;
  }
}

TEST_F(GptTrain, TakesFromAPresetWhatIsNotGiven) {
  std::string without_context = arguments();
  without_context.erase(without_context.find("--context 32"), std::string("--context 32").size());

  const Outcome outcome = train("--preset 1b " + without_context);

  EXPECT_EQ(outcome.status, 0) << outcome.output;
  // A context of 1024 tokens, for 2 ranks with 2 micro-batches each.
  EXPECT_NE(outcome.output.find("2 ranks, 4096 tokens a step"), std::string::npos) << outcome.output;
  expect_refused(train(arguments() + " --preset 8b"), 2, {"--preset", "one of 30m, 124m, 1b, 7b"});
}

TEST_F(GptTrain, LetsTwoRunsShareADirectory) {
  const std::string both = arguments();
  const std::string alone = digest_in(train(both).output);
  ASSERT_FALSE(alone.empty());

  TrainProcess beside(both);
  const Outcome here = train(both);

  EXPECT_EQ(digest_in(here.output), alone) << here.output;
  EXPECT_EQ(digest_in(beside.finish().output), alone);
  EXPECT_EQ(swap_.entry_count(), 0u);
}

TEST_F(GptTrain, StaysWithinItsBudgetsAndAStatedConstant) {
  if (penstock::test::any_sanitizer) GTEST_SKIP() << "a sanitizer's shadow memory is resident too";
  const Outcome outcome = train(arguments() + " --width 256 --layers 3 --context 64");
  const std::string label = "peak resident memory ";
  const auto at = outcome.output.find(label);
  ASSERT_NE(at, std::string::npos) << outcome.output;
  double peak = 0, most = 0;
  ASSERT_EQ(
      std::sscanf(outcome.output.c_str() + at + label.size(), "%lf MiB of at most %lf MiB", &peak, &most), 2)
      << outcome.output.substr(at);

  EXPECT_GT(peak, 10);
  EXPECT_LE(peak, most);
}

}  // namespace
}  // namespace gpt::test
