// gpt_train with optimizer.type "Muon".
#include "gpt_train_fixture.hpp"

#include <gtest/gtest.h>
#include <cstdlib>
#include <string>

namespace gpt::test {
namespace {

class GptTrainMuon : public GptTrain {
 protected:
  [[nodiscard]] std::string with_muon(const std::string& change = "") const {
    return with_replaced(arguments(change), R"("AdamW", "params": {"lr": 1e-3})",
                         R"("Muon", "params": {"lr": 0.02, "adam_lr": 1e-3})");
  }
};

double last_loss(const Outcome& outcome) {
  const auto at = outcome.output.rfind("  loss ");
  return at == std::string::npos ? 0 : std::atof(outcome.output.c_str() + at + 7);
}

TEST_F(GptTrainMuon, TrainsOnDiskToTheDigestOfARunInMemoryAndLearns) {
  const Outcome outcome = train(with_muon() + " --layers 2 --steps 20 --check");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("check passed"), std::string::npos) << outcome.output;
  const Outcome adam = train(arguments() + " --layers 2 --steps 20");
  EXPECT_NE(digest_in(outcome.output), digest_in(adam.output));
  EXPECT_GT(last_loss(outcome), 0);
  EXPECT_LT(last_loss(outcome), last_loss(adam));
}

TEST_F(GptTrainMuon, RefusesMatricesThatAreCut) {
  expect_refused(train(with_muon(R"(, "penstock": {"unit_elements_max": 33000})")), 2,
                 {"penstock.unit_elements_max", "row blocks"});
}

TEST_F(GptTrainMuon, SaysWhichLibraryIsMissing) {
  ::setenv("PENSTOCK_BLAS", "/no/libblas.so", 1);
  const Outcome outcome = train(with_muon() + " --ranks 1");
  ::unsetenv("PENSTOCK_BLAS");
  expect_refused(outcome, 1, {"/no/libblas.so", "PENSTOCK_BLAS", "libopenblas"});
}

}  // namespace
}  // namespace gpt::test
