#pragma once

#include <penstock/zero/comm/in_process_group.hpp>

#include "kit/pattern.hpp"
#include "kit/process_ranks.hpp"
#include "kit/seeded_random.hpp"

#include <penstock/tiers/device/host_device.hpp>
#include "kernels/host_compute.hpp"

#include <gtest/gtest.h>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// The ranks of the conformance suite of communicators. One thread runs all ranks, in an order chosen by a seed; or each
// rank is a process, and all processes run the same tests, each the calls of its own rank.
namespace penstock::zero::test {

using penstock::test::Pattern;
using penstock::test::SeededRandom;
using tiers::HostDevice;

/// Makes the communicator of one rank of a group.
using Join = std::function<std::unique_ptr<Communicator>(std::uint32_t rank, tiers::Device&, Compute&)>;

/// The device of a rank, and what the suite must do with it beyond the interface.
struct RankDevice {
  std::unique_ptr<tiers::Device> device;
  std::unique_ptr<Compute> compute;
  /// Runs an operation of its streams, or gives streams that run by themselves some time. False, if there is none.
  std::function<bool()> run_one;
};

/// Add one of these to run the suite with another transport.
struct Factory {
  const char* name;
  /// `seed` chooses the order in which the devices run their streams.
  Join (*make_group)(std::uint32_t ranks, std::uint64_t seed, const InProcessGroupOptions& options);
  RankDevice (*make_device)(std::uint32_t rank, HostDevice::Mode mode, std::uint64_t seed);
  /// Runs a function in the order of a stream.
  void (*enqueue)(tiers::Stream& stream, std::function<void()> operation);
  HostSpan (*bytes)(DeviceSpan memory);
  bool joins_together = false;     ///< a rank's join returns when all ranks join
  bool streams_run_alone = false;  ///< they cannot be made to wait
  bool wakes = true;               ///< else Communicator::poll_interval() is short
  bool joins_slowly = false;       ///< a join takes a good part of a second
  /// The rank of this process, if the others are processes that run the suite too.
  std::optional<std::uint32_t> (*own_rank)() = []() -> std::optional<std::uint32_t> { return std::nullopt; };
  /// Waits until all processes are here.
  void (*meet)() = [] {};
  /// At the end of a test.
  void (*check)() = [] {};
  /// Why this machine cannot run the suite; empty, if it can.
  std::string (*why_not)() = [] { return std::string(); };
};

inline RankDevice make_host_device(std::uint32_t rank, HostDevice::Mode mode, std::uint64_t seed) {
  auto device = std::make_unique<HostDevice>(
      HostDevice::Options{.memory = 1_MiB, .mode = mode, .seed = seed * 7 + rank});
  HostDevice* const raw = device.get();
  return {.device = std::move(device), .compute = kernels::make_host_compute(), .run_one = [raw] {
            return raw->run_one();
          }};
}
inline void enqueue_on_host(tiers::Stream& stream, std::function<void()> operation) {
  stream.handle().host_queue()->enqueue(std::move(operation));
}

inline constexpr Factory in_process = {
    .name = "InProcess",
    .make_group = [](std::uint32_t ranks, std::uint64_t, const InProcessGroupOptions& options) -> Join {
      return [group = InProcessGroup::create(ranks, options).value()](
                 std::uint32_t rank, tiers::Device& device, Compute& compute) {
        return group->join(rank, device, compute).value();
      };
    },
    .make_device = make_host_device,
    .enqueue = enqueue_on_host,
    .bytes = [](DeviceSpan memory) { return HostDevice::bytes(memory); }};

inline constexpr Factory processes = {
    .name = "Processes",
    .make_group = [](std::uint32_t ranks, std::uint64_t seed, const InProcessGroupOptions& options) -> Join {
      using penstock::test::ProcessRanks;
      return [job = std::make_shared<ProcessRanks>(ranks, seed, options.deadline, *options.clock)](
                 std::uint32_t rank, tiers::Device& device, Compute& compute) {
        return job->join(rank, device, compute);
      };
    },
    .make_device = make_host_device,
    .enqueue = enqueue_on_host,
    .bytes = [](DeviceSpan memory) { return HostDevice::bytes(memory); }};

struct Setting {
  Factory transport;
  std::uint32_t ranks;
  HostDevice::Mode mode;
};
inline void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.transport.name << setting.ranks
       << (setting.mode == HostDevice::Mode::eager ? "RanksEager" : "RanksDeferred");
}

/// One rank with a flat of its own on its own device.
struct Rank {
  std::unique_ptr<tiers::Device> device;
  std::unique_ptr<Compute> compute;
  std::function<bool()> run_one;
  std::unique_ptr<tiers::Stream> stream;
  std::unique_ptr<Communicator> communicator;
  DeviceSpan memory;

  ~Rank() {
    communicator.reset();
    stream.reset();
    if (device) device->release(memory);
  }
};

class CommunicatorConformance : public testing::TestWithParam<Setting> {
 protected:
  static constexpr std::uint64_t slot_elements = 96;

  void SetUp() override {
    if (const std::string why = transport().why_not(); !why.empty()) GTEST_SKIP() << why;
    open(/*seed=*/1);
  }
  void TearDown() override { close(); }

  void close() {
    transport().meet();  // a rank that leaves ends what its peers still do
    ranks_.clear();
    transport().check();
  }
  void open(std::uint64_t seed) {
    close();
    random_ = SeededRandom(seed);
    order_ = SeededRandom(seed);
    join_ = transport().make_group(GetParam().ranks, seed, {});
    ranks_.resize(GetParam().ranks);
    for (const std::uint32_t r : here()) {
      auto& rank = ranks_[r] = std::make_unique<Rank>();
      RankDevice made = transport().make_device(r, GetParam().mode, seed);
      rank->device = std::move(made.device);
      rank->compute = std::move(made.compute);
      rank->run_one = std::move(made.run_one);
      rank->stream = rank->device->create_stream().value();
      rank->memory = rank->device->allocate(64_KiB).value();
      if (!transport().joins_together) join(r);
    }
    if (!transport().joins_together) return;
    std::vector<std::thread> joining;
    for (std::uint32_t r = 0; r < size(); ++r) joining.emplace_back([this, r] { join(r); });
    for (std::thread& one : joining) one.join();
  }
  void join(std::uint32_t r) { rank(r).communicator = join_(r, *rank(r).device, *rank(r).compute); }
  static const Factory& transport() { return GetParam().transport; }
  std::uint32_t size() const { return GetParam().ranks; }
  /// The ranks of this process.
  static std::vector<std::uint32_t> here() {
    if (const auto own = transport().own_rank()) return {*own};
    std::vector<std::uint32_t> all(GetParam().ranks);
    std::iota(all.begin(), all.end(), 0u);
    return all;
  }
  static bool is_here(std::uint32_t r) { return !is_process() || transport().own_rank() == r; }
  /// Whether this process has one rank only. Then nothing can be said about the order of what ranks do.
  static bool is_process() { return transport().own_rank().has_value(); }
  /// How many seeds a test takes that would take `many`.
  static std::uint64_t seeds(std::uint64_t many) {
    return is_process() || transport().joins_slowly ? 2 : many;
  }
  Rank& rank(std::uint32_t r) { return *ranks_[r]; }

  DeviceTensor flat(std::uint32_t r, DType dtype = DType::bf16) {
    return {rank(r).memory.subspan(0_B, size_of(dtype) * (slot_elements * size())), dtype};
  }
  DeviceTensor slot(std::uint32_t r, std::uint32_t index, DType dtype = DType::bf16) {
    return flat(r, dtype).slice(ElementCount(slot_elements * index), ElementCount(slot_elements));
  }
  /// As many floats, elsewhere.
  DeviceTensor wide_flat(std::uint32_t r) {
    return {rank(r).memory.subspan(32_KiB, 4_B * (slot_elements * size())), DType::fp32};
  }
  static HostSpan bytes(const DeviceTensor& tensor) { return transport().bytes(tensor.bytes); }
  void enqueue(std::uint32_t r, std::function<void()> operation) {
    transport().enqueue(*rank(r).stream, std::move(operation));
  }

  /// Polls the ranks and runs their streams, one operation at a time, until every rank has completed its collective.
  void finish() {
    std::vector<bool> through(size(), false);
    const std::vector<std::uint32_t> ranks = here();
    for (std::size_t left = ranks.size(); left > 0;) {
      const std::uint32_t r = ranks[order_.below(ranks.size())];
      if (order_.below(2) == 0) (void)rank(r).run_one();
      if (through[r]) continue;
      const auto enqueued = rank(r).communicator->poll();
      ASSERT_TRUE(enqueued) << enqueued.error().message();
      if (*enqueued) through[r] = true, --left;
    }
  }
  /// The error with which the collective ends that rank r has `started`.
  Error error_of(std::uint32_t r, const Result<void>& started) {
    if (!started) return started.error();
    Result<bool> outcome = false;
    for (int turn = 0; outcome && !*outcome && (turn < 1000 || is_process()); ++turn) {
      (void)rank(r).run_one();
      outcome = rank(r).communicator->poll();
    }
    if (!outcome) return outcome.error();
    return Error(ErrorCode::failed_state, "test").reason(*outcome ? "it has completed" : "it has not ended");
  }
  /// Runs the operations of streams that do not run alone.
  void run_streams() {
    if (!transport().streams_run_alone) drain();
  }
  /// Runs every stream to its end.
  void drain() {
    if (transport().streams_run_alone) {
      for (const std::uint32_t r : here()) EXPECT_TRUE(rank(r).stream->synchronize());
      return;
    }
    for (bool ran = true; ran;) {
      ran = false;
      for (const std::uint32_t r : here()) ran |= rank(r).run_one();
    }
  }
  void fill_own_slots(std::uint64_t generation) {
    for (const std::uint32_t r : here()) {
      const HostSpan own = bytes(slot(r, r));
      const Pattern pattern{.tensor = r, .generation = generation};
      enqueue(r, [own, pattern] { pattern.fill(own); });
    }
  }

  SeededRandom random_{1};  ///< what ranks do: the same in all processes
  SeededRandom order_{1};   ///< who comes next
  Join join_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

/// With what the program runs the suite.
[[nodiscard]] std::vector<Setting> transport_settings();

/// Those with enough ranks, and with streams that the test runs, if it must.
inline auto settings_of(std::size_t ranks_min, bool runs_streams = false) {
  std::vector<Setting> settings = transport_settings();
  std::erase_if(settings, [&](const Setting& one) {
    return one.ranks < ranks_min || (runs_streams && one.transport.streams_run_alone);
  });
  return testing::ValuesIn(settings);
}

}  // namespace penstock::zero::test
