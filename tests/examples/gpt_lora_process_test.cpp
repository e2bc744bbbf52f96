// gpt_train with --save, --resume, --base and --lora.
#include "gpt_train_fixture.hpp"

#include <gtest/gtest.h>
#include <csignal>
#include <string>

namespace gpt::test {
namespace {

class GptTrainLora : public GptTrain {
 protected:
  [[nodiscard]] std::string file(const char* name) const { return (directory_.path() / name).string(); }
  /// With a learning rate that does not depend on the number of steps.
  [[nodiscard]] std::string scheduled() const {
    return arguments(R"(, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 3}})");
  }
  void train_base() const {
    const Outcome outcome = train(scheduled() + " --save " + file("base"));
    ASSERT_EQ(outcome.status, 0) << outcome.output;
  }
  [[nodiscard]] std::string adapters() const { return scheduled() + " --lora 8 --base " + file("base"); }
};

TEST_F(GptTrainLora, TrainsAdaptersOfASavedBaseOnDiskAndInMemoryToTheSameDigest) {
  train_base();

  const Outcome outcome = train(adapters() + " --ranks 4 --check");

  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("check passed"), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("3 072 of them trained"), std::string::npos) << outcome.output;
}

TEST_F(GptTrainLora, ContinuesATrainingThatWasSaved) {
  train_base();
  const Outcome whole = train(adapters() + " --steps 4"),
                half = train(adapters() + " --steps 2 --save " + file("adapters")),
                rest = train(adapters() + " --steps 4 --resume " + file("adapters"));

  EXPECT_EQ(half.status, 0) << half.output;
  EXPECT_EQ(rest.status, 0) << rest.output;
  EXPECT_EQ(rest.output.find("step 2/4"), std::string::npos) << rest.output;
  EXPECT_NE(rest.output.find("step 3/4"), std::string::npos) << rest.output;
  EXPECT_NE(digest_in(whole.output), "");
  EXPECT_EQ(digest_in(rest.output), digest_in(whole.output));
}

TEST_F(GptTrainLora, SavesWhatItHasTrainedBeforeASignal) {
  TrainProcess process(scheduled() + " --steps 100000 --save " + file("saved"));
  ASSERT_TRUE(process.wait_for_output("step 2/"));
  process.kill(SIGTERM);
  const Outcome ended = process.finish();

  const Outcome resumed =
      train(scheduled() + " --steps 200000 --check --resume " + file("saved") + " --layers 2");

  EXPECT_EQ(ended.status, 128 + SIGTERM) << ended.output;
  expect_refused(resumed, 2, {"another model"});  // the file is there
}

TEST_F(GptTrainLora, RefusesAdaptersThatCannotBeTrained) {
  expect_refused(train(scheduled() + " --lora 8"), 2,
                 {"--lora", "wanted", "--base FILE", "no --base", "--save"});
  expect_refused(train(scheduled() + " --lora 8 --base /nonexistent/base"), 2, {"/nonexistent/base"});
  expect_refused(train(scheduled() + " --lora 8 --base " + file("text")), 2,
                 {"no file of a training's states"});
  train_base();
  const std::string based = scheduled() + " --base " + file("base");
  expect_refused(train(based + " --lora 0"), 2, {"--lora", "1 to 64", "got", "0"});
  expect_refused(train(based + " --lora 65"), 2, {"--lora", "1 to 64", "65"});
  expect_refused(train(based + " --lora -1"), 2, {"--lora", "-1"});
  expect_refused(train(based + " --lora 8 --lora-alpha 0"), 2, {"--lora-alpha", "above 0"});
  expect_refused(train(based + " --lora-alpha 8"), 2, {"--lora-alpha", "--lora"});
  expect_refused(train(based + " --lora 8 --width 128"), 2, {"another model", "--width"});
}

TEST_F(GptTrainLora, RefusesAResumptionThatChangesNothing) {
  train_base();
  const std::string resumed = scheduled() + " --resume " + file("base");
  expect_refused(train(resumed + " --steps 2"), 2, {"--steps", "above 2", "got", "2"});
  expect_refused(train(resumed + " --steps 4 --base " + file("base")), 2, {"--base", "--resume"});
  expect_refused(train(scheduled() + " --save /nonexistent/states"), 2, {"/nonexistent/states"});
}

TEST_F(GptTrainLora, RefusesToSaveFromSeveralProcesses) {
  expect_refused(train(scheduled() + " --rank 0 --world 2 --master localhost:29999 --save " + file("states")),
                 2, {"--save", "one of several processes", "--ranks"});
}

}  // namespace
}  // namespace gpt::test
