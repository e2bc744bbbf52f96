// The kernel does not return from a system call of a path's driver.
#include "unit/swap/create_patiently.hpp"
#include "unit/swap/held_engine.hpp"
#include "unit/swap/runtime_fixture.hpp"

#include "kit/scratch_directory.hpp"

#include <penstock/swap/disk_benchmark.hpp>
#include <penstock/tiers/io/sim_disk.hpp>

#include <gtest/gtest.h>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace penstock::swap {
namespace {

using test::add;
using test::Gate;
using test::holds;
using test::write;
using tiers::TensorId;

/// Paths on real files, on a clock that stands still until the first path's engine is held. Its deadline is 64 ms.
class HungCall : public testing::Test {
 protected:
  void TearDown() override {
    done_ = true;
    gate_->release_all();
    if (ticker_.joinable()) ticker_.join();
    gate_->wait_until_destroyed();  // an abandoned thread uses the clock
  }
  PathOptions path() {
    return {.directory = directory_.path(),
            .capacity = 1_MiB,
            .request_max = 16_KiB,
            .in_flight_max = 64_KiB,
            .clock = &clock_};
  }
  PathOptions held_path() {
    PathOptions held = path();
    held.deadline = std::chrono::milliseconds(64);
    test::hold_engine(held, gate_);
    return held;
  }
  /// From now on the first path's engine accepts no request, and time passes while it does not.
  void hang() {
    gate_->hold(Gate::Call::submit);
    ticker_ = std::thread([this] {
      gate_->wait_until_held();
      while (!done_) {
        clock_.advance_to(clock_.now() + std::chrono::milliseconds(1));
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }

  const penstock::test::ScratchDirectory directory_;
  tiers::SimClock clock_;
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  std::atomic<bool> done_ = false;
  std::thread ticker_;
};

TEST_F(HungCall, FailsTheLoadThatWaitsForItAndDoesNotKeepTheRuntime) {
  auto runtime = test::create_patiently(
      [&] { return Runtime::create({.host_budget = 64_KiB, .paths = {held_path()}}); });
  const TensorId tensor = add(*runtime, 16_KiB);
  write(*runtime, tensor, 1);
  EXPECT_TRUE(runtime->flush());
  runtime->remove(add(*runtime, 64_KiB, /*on_disk=*/false)).value();  // evicts it
  ASSERT_FALSE(runtime->in_memory(tensor));
  hang();

  const auto lease = runtime->acquire(tensor, Access::read);

  ASSERT_FALSE(lease);
  EXPECT_EQ(lease.error().code(), ErrorCode::deadline_exceeded);
  const std::string message = lease.error().message();
  for (const std::string& word : {directory_.path().string(), std::string("system call"),
                                  std::string("are not reused: the kernel may still write there")}) {
    EXPECT_NE(message.find(word), std::string::npos) << word << "\n" << message;
  }
  runtime.reset();  // while the call has not returned
}

TEST_F(HungCall, MovesStoresToAnotherPath) {
  auto runtime = test::create_patiently([&] {
    return Runtime::create({.host_budget = 64_KiB, .paths = {held_path(), path()}});
  });
  std::vector<TensorId> tensors;
  for (int i = 0; i < 4; ++i) tensors.push_back(add(*runtime, 16_KiB));
  hang();

  for (const TensorId tensor : tensors) write(*runtime, tensor, 1);
  EXPECT_TRUE(runtime->flush());

  for (const TensorId tensor : tensors) EXPECT_TRUE(holds(*runtime, tensor, 1));
  EXPECT_TRUE(runtime->tensors_on_path(0).empty());
  std::string messages;
  for (std::string& line : runtime->take_messages()) messages += line.append("\n");
  EXPECT_NE(messages.find("is retired after fault number 1"), std::string::npos) << messages;
}

TEST_F(HungCall, EndsABenchmark) {
  auto benchmark = test::create_patiently(
      [&] { return DiskBenchmark::create({.paths = {held_path()}, .transfer = 16_KiB}); });
  hang();

  for (const ErrorCode code : {ErrorCode::deadline_exceeded, ErrorCode::failed_state}) {
    const auto sample = benchmark->run(BenchmarkPattern::write, std::chrono::milliseconds(1));
    ASSERT_FALSE(sample);
    EXPECT_EQ(sample.error().code(), code) << sample.error().message();
  }
  benchmark.reset();  // while the call has not returned
}

}  // namespace
}  // namespace penstock::swap
