// Activation checkpoints that are leased in orders that no training has, on one rank and on two streams.
#include "kit/deferred_rank.hpp"
#include "kit/seeds.hpp"

#include <gtest/gtest.h>
#include <cstring>
#include <map>
#include <string>
#include <utility>

namespace penstock::zero {
namespace {

using penstock::test::SeededRandom;
using test::DeferredRank;

/// One unit, whose gradient is all that a step needs, and `count` checkpoints.
DeferredRank::Options options_with(std::uint32_t count, std::uint32_t leased_max, std::uint64_t seed) {
  DeferredRank::Options options{.seed = seed};
  options.config.offload_param.device = options.config.offload_optimizer.device = OffloadDevice::cpu;
  options.model.units = {{.name = "unit", .parameters = {{"weight", ElementCount(1024), 0}}}};
  options.model.checkpoints = {.count = count, .size = 6000_B, .leased_max = leased_max};
  return options;
}

/// Writes and reads checkpoints whose every word is one value.
class CheckpointRank {
 public:
  explicit CheckpointRank(DeferredRank::Options options)
      : rank_((
            options.change = [this](Accelerator& made) { device_ = made.device.get(); }, options)) {
    other_ = device_->create_stream().value();
    rank_.engine().initialize([](ParameterId, std::uint64_t, std::span<float>) {}).value();
  }

  [[nodiscard]] DeferredRank& rank() { return rank_; }
  [[nodiscard]] Engine& engine() { return rank_.engine(); }
  [[nodiscard]] std::uint64_t wrong() const { return wrong_; }
  [[nodiscard]] tiers::Stream& stream(bool other) { return other ? *other_ : rank_.stream(); }

  [[nodiscard]] CheckpointLease lease(std::uint32_t checkpoint, CheckpointUse use, std::uint64_t value,
                                      tiers::Stream& stream) {
    auto lease = engine().checkpoint(checkpoint, use, stream).value();
    const HostSpan bytes = tiers::HostDevice::bytes(lease.bytes());
    const bool writes = use == CheckpointUse::write;
    stream.handle().host_queue()->enqueue([this, bytes, value, writes] {
      std::uint64_t differ = 0;
      for (std::size_t at = 0; at + sizeof(value) <= bytes.size().value(); at += sizeof(value)) {
        if (writes) std::memcpy(bytes.data() + at, &value, sizeof(value));
        differ += std::memcmp(bytes.data() + at, &value, sizeof(value)) == 0 ? 0u : 1u;
      }
      wrong_ += differ == 0 ? 0u : 1u;
    });
    return lease;
  }

  void step() {
    engine().reduce(engine().gradients(0, rank_.stream()).value(), rank_.stream()).value();
    engine().step().value();
  }

  /// Until the other stream has executed everything.
  void finish_other() {
    const auto event = device_->create_event().value();
    other_->record(*event).value();
    swap::RuntimeInternals(rank_.runtime()).wait_for(*event, "the other stream", forever).value();
  }
  void finish() {
    finish_other();
    rank_.finish();
  }

 private:
  tiers::Device* device_ = nullptr;
  DeferredRank rank_;
  std::unique_ptr<tiers::Stream> other_;
  std::uint64_t wrong_ = 0;
};

/// Leases checkpoints in an order chosen by a seed, several at a time, on the trainer's stream or on another.
class RandomLeases {
 public:
  RandomLeases(CheckpointRank& rank, std::uint32_t count, std::uint32_t leased_max)
      : rank_(rank), count_(count), leased_max_(leased_max) {}

  /// `order` chooses what is leased, so that a step can repeat another; `random` when leases end and moves advance.
  void run(SeededRandom order, SeededRandom& random) {
    written_.clear();
    for (int operation = 0; operation < 40; ++operation) {
      const auto checkpoint = static_cast<std::uint32_t>(order.below(count_));
      const std::uint64_t what = order.below(4);
      tiers::Stream& stream = rank_.stream(order.below(2) == 1);
      if (held_.contains(checkpoint)) {
        end(checkpoint);
        continue;
      }
      if (held_.size() == leased_max_) end(held_.begin()->first);
      lease(checkpoint, what, stream);
      if (random.below(3) == 0) end(checkpoint);
      for (std::uint64_t polls = random.below(6); polls > 0; --polls) (void)rank_.rank().runtime().poll();
    }
    held_.clear();
  }

 private:
  struct Held {
    CheckpointLease lease;
    CheckpointUse use;
  };

  void lease(std::uint32_t checkpoint, std::uint64_t what, tiers::Stream& stream) {
    CheckpointUse use = what == 2 ? CheckpointUse::read : CheckpointUse::last_read;
    if (what < 2 || !written_.contains(checkpoint)) {
      use = CheckpointUse::write;
      written_[checkpoint] = ++value_;
    }
    held_[checkpoint] = {rank_.lease(checkpoint, use, written_[checkpoint], stream), use};
  }

  void end(std::uint32_t checkpoint) {
    if (held_[checkpoint].use == CheckpointUse::last_read) written_.erase(checkpoint);
    held_.erase(checkpoint);
  }

  CheckpointRank& rank_;
  const std::uint32_t count_, leased_max_;
  std::map<std::uint32_t, std::uint64_t> written_;  ///< value of each
  std::map<std::uint32_t, Held> held_;
  std::uint64_t value_ = 0;
};

// A step ends with an update, is abandoned, or is only left as after an evaluation.
TEST(EngineCheckpointOrder, KeepsTheBytesOfEachOnTwoStreams) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 400)) {
    SeededRandom random(seed + 77);
    const auto count = static_cast<std::uint32_t>(2 + random.below(8));
    const auto leased_max = static_cast<std::uint32_t>(1 + random.below(3));
    DeferredRank::Options options = options_with(count, leased_max, seed);
    options.model.checkpoints.reads = 2;
    const auto plan = plan_memory(options.config, options.model, 1, 1, tiers::DeviceMemory::separate).value();
    options.config.penstock.device_budget = plan.device_minimum + 8_KiB * random.below(count);
    CheckpointRank rank(options);
    RandomLeases leases(rank, count, leased_max);

    for (std::uint64_t step = 0; step < 6; ++step) {
      rank.engine().begin_step({.micro_batches = 1}).value();
      const bool as_before = random.below(4) != 0;
      leases.run(SeededRandom(seed * 10 + (as_before ? 100 : step)), random);
      const std::uint64_t end = random.below(5);
      if (end == 0) {
        rank.finish_other();  // abandon_step() waits for the trainer's
        rank.engine().abandon_step(rank.rank().stream()).value();
      } else if (end > 1) {
        rank.step();
      }
    }

    rank.finish();
    ASSERT_EQ(rank.wrong(), 0u) << "seed " << seed;
  }
}

// The fourth step leaves three checkpoints unread, which have come back ahead of their use. The next one writes them.
TEST(EngineCheckpointOrder, DoesNotWriteASlotBeforeACopyThatNobodyReadsHasEnded) {
  constexpr std::uint32_t count = 6;
  for (const std::uint64_t seed : penstock::test::seeds(0, 200)) {
    CheckpointRank rank(options_with(count, /*leased_max=*/2, seed));
    const auto use = [&](std::uint32_t checkpoint, CheckpointUse how, std::uint64_t value) {
      rank.lease(checkpoint, how, value, rank.rank().stream()).end();
    };

    for (std::uint64_t step = 0; step < 4; ++step) {
      rank.engine().begin_step({.micro_batches = 1}).value();
      const std::uint32_t last = step < 3 ? 0 : 3;
      for (std::uint32_t i = 0; i < count; ++i) use(i, CheckpointUse::write, step * 100 + i);
      for (std::uint32_t i = count; i-- > last;) use(i, CheckpointUse::last_read, step * 100 + i);
      if (step < 3) rank.step();
    }
    rank.engine().begin_step({.micro_batches = 1}).value();
    for (std::uint32_t i = 3; i < count; ++i) use(i, CheckpointUse::write, 900 + i);
    for (std::uint32_t i = 3; i < count; ++i) use(i, CheckpointUse::read, 900 + i);

    rank.finish();
    ASSERT_EQ(rank.wrong(), 0u) << "seed " << seed;
  }
}

}  // namespace
}  // namespace penstock::zero
