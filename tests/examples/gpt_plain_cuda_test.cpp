// What the loop on plain buffers does with the errors of a CUDA device, on a fake CUDA runtime.
#include "fake_cuda/fake_cuda.hpp"
#include "gpt/plain_trainer.hpp"
#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <fstream>
#include <utility>
#include <vector>

namespace gpt {
namespace {

namespace fake_cuda = penstock::test::fake_cuda;

constexpr ModelConfig model{.layers = 1, .width = 16, .heads = 2, .context = 6};

class PlainTrainerOnCuda : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(directory_.path() / "text") << "the quick brown fox jumps over the lazy dog";
    text_.emplace(Text::load(directory_.path() / "text", model.context).value());
    config_.dtype = config_.grad_accum_dtype = penstock::DType::bf16;
  }
  void TearDown() override { fake_cuda::restart(); }

  std::unique_ptr<PlainTrainer> make_plain() {
    return PlainTrainer::create({.model = model,
                                 .training = {.ranks = 1, .steps = 4},
                                 .config = config_,
                                 .text = &*text_,
                                 .make_device = on_cuda(model)})
        .value();
  }

  penstock::zero::Config config_;
  penstock::test::ScratchDirectory directory_;
  std::optional<Text> text_;
};

TEST_F(PlainTrainerOnCuda, HasTheSameBitsWheneverTheDeviceExecutesItsCopies) {
  const auto train = [&] {
    const auto trainer = make_plain();
    std::vector<double> losses;
    for (std::uint32_t step = 0; step < 4; ++step) losses.push_back(trainer->step(step).value().loss);
    std::vector<float> masters;
    EXPECT_TRUE(trainer->read_masters([&](ParameterId, std::uint64_t, std::span<const float> values) {
      masters.insert(masters.end(), values.begin(), values.end());
    }));
    return std::pair(losses, masters);
  };
  const auto wanted = train();

  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    fake_cuda::restart({.seed = seed});
    EXPECT_EQ(train(), wanted) << "seed " << seed;
  }
}

TEST_F(PlainTrainerOnCuda, ReportsAProductThatCannotBeEnqueued) {
  const auto trainer = make_plain();
  fake_cuda::fail_call("cublasLtMatmul", 5, cudaErrorLaunchOutOfResources);

  const auto outcome = trainer->step(0);

  ASSERT_FALSE(outcome);
  EXPECT_NE(outcome.error().message().find("failed to launch"), std::string::npos)
      << outcome.error().message();
}

TEST_F(PlainTrainerOnCuda, ReportsAKernelThatFaultsInAStepOrInItsUpdate) {
  for (const std::uint64_t kernel : {1u, 30u, 60u}) {
    fake_cuda::restart();
    const auto trainer = make_plain();
    fake_cuda::fail_kernel(kernel);

    auto outcome = trainer->step(0);
    if (outcome) outcome = trainer->step(1);

    ASSERT_FALSE(outcome);
    EXPECT_NE(outcome.error().message().find("illegal memory access"), std::string::npos)
        << outcome.error().message();
  }
}

TEST_F(PlainTrainerOnCuda, AllocatesNothingAndWaitsOnceInAStep) {
  const auto trainer = make_plain();
  // The first steps register the memory through which tokens are copied.
  for (std::uint32_t step = 0; step < 3; ++step) ASSERT_TRUE(trainer->step(step));
  const fake_cuda::Counts before = fake_cuda::count();

  ASSERT_TRUE(trainer->step(3));

  const fake_cuda::Counts step = fake_cuda::count() - before;
  EXPECT_GT(step.of("cudaLaunchKernel"), 0u);
  EXPECT_EQ(step.allocations() + step.stream_creations() + step.of("cudaHostRegister"), 0u);
  EXPECT_EQ(step.device_synchronizations() + step.of("cudaMemcpy"), 0u);
  EXPECT_EQ(step.of("cudaStreamSynchronize"), 1u) << "for the losses and the norm";
}

TEST_F(PlainTrainerOnCuda, LeavesNothingOnTheDevice) {
  ASSERT_TRUE(make_plain()->step(0));

  EXPECT_EQ(fake_cuda::live(), fake_cuda::Live{});
}

}  // namespace
}  // namespace gpt
