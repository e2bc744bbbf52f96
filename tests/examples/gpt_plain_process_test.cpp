// Runs gpt_plain as a user does.
#include "gpt_process.hpp"

#include "kit/run_program.hpp"
#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <csignal>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

using gpt::test::Outcome;
using gpt::test::TrainProcess;

class GptPlain : public testing::Test {
 protected:
  /// With the report in `report`; `change` is put into the configuration.
  std::string arguments(const std::string& report, const std::string& change = "") {
    std::ofstream text(directory_.path() / "text");
    for (int i = 0; i < 4000; ++i) text << "the quick brown fox jumps over the lazy dog " << i << "\n";
    std::ofstream(directory_.path() / "config.json")
        << R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "bf16": {"enabled": true},
               "optimizer": {"type": "AdamW", "params": {"lr": )"
        << learning_rate_ << "}}" << change << "}";
    return "--layers 1 --width 64 --heads 2 --context 32 --steps 4 --text " + path("text") + " --config " +
           path("config.json") + " --json " + path(report);
  }
  Json::Value report(const std::string& name) const {
    std::ifstream in(directory_.path() / name);
    const penstock::test::ProgramResult text{
        .status = 0, .out = {std::istreambuf_iterator<char>(in), {}}, .err = {}};
    return text.json();
  }
  std::string path(const std::string& name) const { return (directory_.path() / name).string(); }

  std::string learning_rate_ = "1e-3";
  penstock::test::ScratchDirectory directory_;
};

TEST_F(GptPlain, ReportsTheLossesOfOneRankOfGptTrainWithAllTheirDigits) {
  ASSERT_EQ(TrainProcess(arguments("engine") + " --ranks 1").finish().status, 0);

  const Outcome outcome = TrainProcess(arguments("plain"), GPT_PLAIN).finish();

  EXPECT_EQ(outcome.status, 0) << outcome.output;
  const Json::Value plain = report("plain"), engine = report("engine");
  for (const char* const member : {"parameters", "ranks", "micro_batches", "tokens_per_step"}) {
    EXPECT_EQ(plain[member], engine[member]) << member;
  }
  EXPECT_EQ(plain["device"]["activation_bytes"], engine["device"]["activation_bytes"]);
  ASSERT_EQ(plain["steps"].size(), 4u);
  ASSERT_EQ(engine["steps"].size(), 4u);
  for (Json::ArrayIndex step = 0; step < 4; ++step) {
    EXPECT_EQ(plain["steps"][step]["loss"].asDouble(), engine["steps"][step]["loss"].asDouble()) << step;
    EXPECT_EQ(plain["steps"][step]["skipped"], engine["steps"][step]["skipped"]) << step;
  }
  for (const Json::Value& one : {plain, engine}) {
    const double second = one["steps"][1]["seconds"].asDouble(),
                 third = one["steps"][2]["seconds"].asDouble();
    EXPECT_NEAR(one["median_step_seconds"].asDouble(), (second + third) / 2, 2e-6);
  }
}

TEST_F(GptPlain, CutsUnitsAsGptTrainDoesForTheSameConfiguration) {
  const std::string change = R"(, "penstock": {"unit_elements_max": 41000})", shape = " --width 128";
  ASSERT_EQ(TrainProcess(arguments("engine", change) + shape + " --ranks 1").finish().status, 0);
  ASSERT_EQ(TrainProcess(arguments("plain", change) + shape, GPT_PLAIN).finish().status, 0);

  const Json::Value plain = report("plain")["steps"], engine = report("engine")["steps"];

  ASSERT_EQ(plain.size(), 4u);
  ASSERT_EQ(engine.size(), 4u);
  for (Json::ArrayIndex step = 0; step < 4; ++step) {
    EXPECT_EQ(plain[step]["loss"].asDouble(), engine[step]["loss"].asDouble()) << step;
  }
}

TEST_F(GptPlain, ReportsALossThatIsNotFiniteAsNullAsGptTrainDoes) {
  learning_rate_ = "1e30";
  const std::string change = R"(, "gradient_clipping": 0)";
  ASSERT_EQ(TrainProcess(arguments("engine", change) + " --ranks 1").finish().status, 0);
  ASSERT_EQ(TrainProcess(arguments("plain", change), GPT_PLAIN).finish().status, 0);

  for (const char* const name : {"engine", "plain"}) {
    const Json::Value steps = report(name)["steps"];
    ASSERT_EQ(steps.size(), 4u) << name;
    EXPECT_TRUE(steps[0]["loss"].isDouble()) << name;
    EXPECT_TRUE(steps[3].isMember("loss") && steps[3]["loss"].isNull()) << name;
  }
}

TEST_F(GptPlain, EndsAfterAWholeStepWithItsReportOnASignal) {
  TrainProcess process(arguments("plain") + " --steps 100000", GPT_PLAIN);
  ASSERT_TRUE(process.wait_for_output("step 2/")) << process.finish().output;

  process.kill(SIGTERM);
  const Outcome outcome = process.finish();

  EXPECT_EQ(outcome.status, 128 + SIGTERM) << outcome.output;
  EXPECT_GE(report("plain")["steps"].size(), 2u);
}

TEST_F(GptPlain, NamesWhatItCannotUse) {
  for (const auto& [argument, words] : std::vector<std::pair<std::string, std::string>>{
           {"--config /nonexistent/config.json", "/nonexistent/config.json"},
           {"--text /nonexistent/text", "/nonexistent/text"},
           {"--json /nonexistent/report.json", "/nonexistent/report.json"},
           {"--ranks 2", "--ranks"},
           {"--preset 3b", "one of 30m, 124m, 1b, 7b"}}) {
    const Outcome outcome = TrainProcess(arguments("plain") + " " + argument, GPT_PLAIN).finish();

    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_NE(outcome.output.find("error: "), std::string::npos) << outcome.output;
    EXPECT_NE(outcome.output.find(words), std::string::npos) << words << " in\n" << outcome.output;
  }
}

TEST_F(GptPlain, RefusesAModelForWhichTheMachineHasNoMemory) {
  const Outcome outcome =
      TrainProcess(arguments("plain") + " --layers 4096 --width 65536 --heads 512", GPT_PLAIN).finish();

  EXPECT_EQ(outcome.status, 1) << outcome.output;
  for (const char* const words : {"cannot start", "memory does not suffice", "device budgets 3.4 PiB"}) {
    EXPECT_NE(outcome.output.find(words), std::string::npos) << words << " in\n" << outcome.output;
  }
  EXPECT_EQ(outcome.output.find("step 1/"), std::string::npos) << outcome.output;
}

}  // namespace
