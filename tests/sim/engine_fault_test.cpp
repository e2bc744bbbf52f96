#include "kit/cluster.hpp"

#include <gtest/gtest.h>
#include <cerrno>
#include <chrono>
#include <set>
#include <string>

namespace penstock::zero {
namespace {

using test::RunOptions;
using test::RunResult;
using test::smallest_host_budget;
using test::train;

RunOptions on_simulated_disks(const ModelLayout& model = test::small_model()) {
  RunOptions options{.steps = 2, .model = model, .seed = 7};
  Config& config = options.config;
  config.offload_param.device = config.offload_optimizer.device = OffloadDevice::nvme;
  config.offload_param.nvme_paths = config.offload_optimizer.nvme_paths = {"."};
  config.penstock.host_budget = smallest_host_budget(options);
  return options;
}

// The CTest label fault injects a fault into every request; the default tests into some of them.
#ifdef FAULT_EVERY_REQUEST
constexpr std::uint64_t stride = 1;
#else
constexpr std::uint64_t stride = 5;
#endif

/// A fault that is injected into one request after the other, and the errors with which a run may end then.
struct Sweep {
  const char* name;
  tiers::Fault fault;
  std::set<ErrorCode> errors;  ///< none: every run ends well
};
void PrintTo(const Sweep& sweep, std::ostream* out) {
  *out << sweep.name;
}

class EngineFaultSweep : public testing::TestWithParam<Sweep> {};

/// For a fault in any request, the run ends with an error that names operation, file and offset, or with the correct
/// digest. It never hangs (the scheduler aborts), leaks, or computes a wrong result.
TEST_P(EngineFaultSweep, EndsWithATypedErrorOrTheRightBits) {
  const auto& [name, fault, errors] = GetParam();
  const RunResult clean = train(on_simulated_disks());
  ASSERT_FALSE(clean.error) << clean.error->message();
  std::uint64_t injected = 0, failed = 0;
  for (std::uint64_t request = 0; request < clean.requests; request += stride) {
    RunOptions options = on_simulated_disks();
    options.faults = {fault};
    options.faults[0].occurrence = request;
    const RunResult run = train(options);
    if (run.injected == 0) break;  // a plan for writes alone is through
    ++injected;
    if (!run.error) {
      EXPECT_EQ(run.digest, clean.digest) << "request " << request;
      continue;
    }
    ++failed;
    const std::string message = run.error->message();
    EXPECT_TRUE(errors.contains(run.error->code())) << "request " << request << ": " << message;
    EXPECT_NE(message.find("simulated file in"), std::string::npos) << message;
    EXPECT_NE(message.find("at offset"), std::string::npos) << message;
    EXPECT_TRUE(message.find("tensor  ") != std::string::npos ||
                message.find(", block ") != std::string::npos)
        << message;
  }
  EXPECT_GT(injected, 4u);
  EXPECT_EQ(failed > 0, !errors.empty());
}

using tiers::Fault;
using tiers::IoOperation;
INSTANTIATE_TEST_SUITE_P(
    Effects, EngineFaultSweep,
    testing::Values(
        Sweep{"EioOfOneRequest", Fault::fail({}, 0, EIO), {ErrorCode::io}},  // where that is one block
        Sweep{"EioOfAllItsPieces", Fault::fail({}, 0, EIO, 12), {ErrorCode::io}},
        Sweep{"Enodev", Fault::fail({}, 0, ENODEV), {ErrorCode::io}},
        Sweep{"EnospcOfAWrite", Fault::fail(IoOperation::write, 0, ENOSPC), {ErrorCode::no_space}},
        Sweep{"Ecanceled", Fault::fail({}, 0, ECANCELED), {ErrorCode::io}},
        Sweep{"Eopnotsupp", Fault::fail({}, 0, EOPNOTSUPP), {ErrorCode::unsupported}},
        Sweep{"Eagain", Fault::fail({}, 0, EAGAIN), {}}, Sweep{"Eintr", Fault::fail({}, 0, EINTR), {}},
        Sweep{"EndOfFile", {.effect = Fault::Effect::shorten}, {ErrorCode::truncated}},
        Sweep{"Short", {.effect = Fault::Effect::shorten, .length = 4_KiB}, {}},
        Sweep{"ShortAndUnaligned", {.effect = Fault::Effect::shorten, .length = 4097_B}, {}},
        Sweep{"ShorterThanABlock", {.effect = Fault::Effect::shorten, .length = 1_B}, {}},
        Sweep{"Late", {.effect = Fault::Effect::delay, .delay = std::chrono::seconds(10)}, {}},
        Sweep{
            "Hang",
            {.effect = Fault::Effect::hang},
            {ErrorCode::deadline_exceeded, ErrorCode::failed_state}},  // a request after a prefetch has hung
        Sweep{"TornWrite",
              {.operation = IoOperation::write, .effect = Fault::Effect::tear, .length = 4_KiB},
              {ErrorCode::corrupted}},
        Sweep{"LostWrite",
              {.operation = IoOperation::write, .effect = Fault::Effect::lose},
              {ErrorCode::corrupted}},
        Sweep{"MisdirectedWrite",
              {.operation = IoOperation::write, .effect = Fault::Effect::misdirect, .distance = 8192},
              {ErrorCode::corrupted, ErrorCode::no_space}},  // beyond the disk's end
        Sweep{"FlippedBit",
              {.operation = IoOperation::read, .effect = Fault::Effect::flip_bit, .bit = 54321},
              {ErrorCode::corrupted}}),
    testing::PrintToStringParamName());

/// Fails each request and the `count` - 1 after it once, and repeats every call that may be repeated.
void go_on_after_each_fault(const ModelLayout& model, std::uint64_t step, std::uint64_t count = 1) {
  const RunResult clean = train(on_simulated_disks(model));
  std::uint64_t resumed = 0;
  for (std::uint64_t request = 0; request < clean.requests; request += step) {
    RunOptions options = on_simulated_disks(model);
    options.faults = {tiers::Fault::fail({}, request, ENODEV, count)};
    options.attempts = 40;
    const RunResult run = train(options);
    // A gather whose shard cannot be read fails the engine. A failed write does not: its bytes are still in memory, the
    // next call returns the error, and the repeated call continues.
    if (run.error) {
      EXPECT_STREQ(run.error->operation(), "BlockFile::read") << run.error->message();
      continue;
    }
    if (run.repeated > 0) ++resumed;
    EXPECT_EQ(run.digest, clean.digest) << "request " << request;
  }
  EXPECT_GT(resumed, clean.requests / step / 4);
}

TEST(EngineFault, ContinuesToTheSameBitsWhenACallIsRepeated) {
  go_on_after_each_fault(test::small_model(), stride);
}

TEST(EngineFault, ContinuesWhileFlatsAreDroppedAndGradientsSpilled) {
  go_on_after_each_fault(test::deep_model(), 2 * stride);
  go_on_after_each_fault(test::deep_model(), 4 * stride, 12);
}

/// At any moment of the failure, the run continues on the other path as far as it has space.
TEST(EngineFault, ComputesTheSameBitsWhenOneOfTwoDisksStopsTakingWrites) {
  const auto two_disks = [] {
    RunOptions options = on_simulated_disks();
    options.paths = 2;
    return options;
  };
  const RunResult clean = train(two_disks());
  ASSERT_FALSE(clean.error) << clean.error->message();
  EXPECT_EQ(clean.digest, train(on_simulated_disks()).digest);
  std::uint64_t taken_out = 0, injected = 0;
  for (const auto effect : {Fault::Effect::fail, Fault::Effect::hang}) {
    for (std::uint64_t write = 0;; write += 2 * stride) {
      RunOptions options = two_disks();
      options.faults = {{.operation = IoOperation::write,
                         .occurrence = write,
                         .count = 1'000'000,
                         .effect = effect,
                         .error = ENODEV}};
      const RunResult run = train(options);
      ASSERT_FALSE(run.error) << "write " << write << ": " << run.error->message();
      EXPECT_EQ(run.digest, clean.digest) << "write " << write;
      if (run.injected == 0) break;
      ++injected;
      EXPECT_FALSE(run.messages.empty());
      for (const std::string& line : run.messages) {
        if (line.find("is retired after fault") != line.npos) ++taken_out;
      }
    }
  }
  EXPECT_GT(injected, 4u);
  EXPECT_GT(taken_out, injected / 2);
}

}  // namespace
}  // namespace penstock::zero
