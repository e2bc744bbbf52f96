#include "unit/swap/runtime_fixture.hpp"

#include <gtest/gtest.h>
#include <cstdint>
#include <vector>

// What a caller waits for does not wait for what is only read ahead, or written behind.

namespace penstock::swap {
namespace {

using test::add;
using test::holds;
using test::Simulation;
using test::write;
using tiers::TensorId;

/// A disk that moves a tensor at a time; memory for all.
class RuntimeUrgency : public testing::Test {
 protected:
  static constexpr std::uint64_t tensors = 32;
  /// One is in flight, the next one waits for it, then the awaited one comes, and at its end the one after it.
  static constexpr std::uint64_t begun_max = 4;

  [[nodiscard]] TensorId on_disk() { return add(runtime_, 16_KiB); }
  /// The requests to the disk that begin until the tensor is in memory.
  std::uint64_t begun_while_read(TensorId tensor) {
    const std::uint64_t before = begun();
    const Lease lease = runtime_.acquire(tensor, Access::read).value();
    return begun() - before;
  }
  std::uint64_t begun() { return runtime_.paths().front().counters.requests; }
  void evict_all() {
    simulation_.run();
    const TensorId all = add(runtime_, 1_MiB, /*on_disk=*/false);
    runtime_.remove(all).value();
  }

  Simulation simulation_{{.host_budget = 1_MiB, .lookahead = 1_MiB, .in_flight_max = 16_KiB}};
  Runtime& runtime_ = *simulation_.runtime;
};

TEST_F(RuntimeUrgency, IsThatOfAUseThatWasNotPredicted) {
  const TensorId other = on_disk();
  write(runtime_, other, 1);
  std::vector<TensorId> predicted;
  for (std::uint64_t i = 0; i < tensors; ++i) {
    predicted.push_back(on_disk());
    write(runtime_, predicted.back(), 1, Use::recorded);
  }
  runtime_.end_round();
  evict_all();
  { const Lease first = runtime_.acquire(predicted.front(), Access::read).value(); }
  while (runtime_.poll()) {  // the others are read ahead
  }

  EXPECT_LE(begun_while_read(other), begun_max);

  for (const TensorId tensor : predicted) EXPECT_TRUE(holds(runtime_, tensor, 1));
}

TEST_F(RuntimeUrgency, IsThatOfWhatIsReadAheadOnceACallerWaitsForIt) {
  std::vector<TensorId> hinted;
  for (std::uint64_t i = 0; i < tensors; ++i) {
    hinted.push_back(on_disk());
    write(runtime_, hinted.back(), 1);
  }
  evict_all();
  for (const TensorId tensor : hinted) runtime_.prefetch(tensor).value();
  while (runtime_.poll()) {
  }

  EXPECT_LE(begun_while_read(hinted.back()), begun_max);
}

// The drive has begun to read a tensor of 32 requests.
TEST_F(RuntimeUrgency, IsThatOfASmallTensorBesideALargeOne) {
  const TensorId wanted = on_disk(), large = add(runtime_, 512_KiB);
  write(runtime_, wanted, 1);
  write(runtime_, large, 1);
  evict_all();
  runtime_.prefetch(large).value();
  while (runtime_.poll()) {
  }

  EXPECT_LE(begun_while_read(wanted), begun_max);
  EXPECT_TRUE(holds(runtime_, large, 1));
}

TEST_F(RuntimeUrgency, IsThatOfALoadBesideStoresBehind) {
  const TensorId wanted = on_disk();
  write(runtime_, wanted, 1);
  evict_all();
  for (std::uint64_t i = 0; i < tensors; ++i) write(runtime_, on_disk(), 1);
  while (runtime_.poll()) {  // they are written behind
  }

  EXPECT_LE(begun_while_read(wanted), begun_max);
}

}  // namespace
}  // namespace penstock::swap
