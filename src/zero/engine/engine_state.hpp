#pragma once

#include "zero/engine/flat_state.hpp"
#include "zero/engine/hops.hpp"
#include "zero/engine/offloaded_optimizer.hpp"

#include <penstock/zero/engine.hpp>

#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace penstock::zero {

/// What one rank's engine holds. Used by the trainer's thread; the mover touches only what FlatState and
/// TurnOrder say.
class Engine::State {
 public:
  explicit State(Options options);
  ~State();
  Result<void> open();

  Result<void> initialize(const Fill& fill);
  Result<void> begin_step(const StepOptions& step);
  Result<std::vector<DeviceTensor>> acquire(std::uint32_t unit, tiers::Stream& stream);
  void release(std::uint32_t unit) noexcept;
  Result<std::vector<GradientSlot>> gradients(std::uint32_t unit, tiers::Stream& stream);
  Result<void> reduce(std::uint32_t unit, tiers::Stream& stream);
  Result<StepOutcome> step();
  Result<std::string> digest();

  std::uint64_t current_step = 0;
  ShardLayout shards;
  std::string notes;

 private:
  // engine_state.cpp
  Result<void> add_tensors(std::uint32_t index, std::uint64_t& tile_number);
  void predict();
  Result<void> fail(Error error);
  [[nodiscard]] Result<void> usable(const char* operation) const;
  Result<void> check_unit(const char* operation, std::uint32_t unit) const;

  // gather.cpp: the device tier, planned at program points, equally on all ranks
  Result<void> ensure_gathering(std::uint32_t flat, std::uint32_t for_unit);
  void prefetch_next_unit(std::uint32_t unit);
  Result<tiers::Reservation> reserve_on_device(ByteCount size, tiers::Purpose purpose,
                                               std::uint32_t for_unit);
  bool drop_furthest_flat(std::uint32_t for_unit);
  void start_gather(std::uint32_t flat, tiers::Reservation range);
  Result<void> drop(FlatState& flat);
  Result<void> wait_for_gather(FlatState& flat);
  [[nodiscard]] bool needs(std::uint32_t unit, std::uint32_t flat) const;
  [[nodiscard]] std::uint64_t uses_until_needed(std::uint32_t flat) const;
  [[nodiscard]] DeviceTensor at(const tiers::Reservation& range, ElementCount count) const;

  // reduce.cpp
  Result<void> open_full_gradient(FlatState& flat, std::uint32_t for_unit, tiers::Stream& stream);
  void start_reduce(FlatState& flat);
  Result<void> settle_oldest_landing();

  // step.cpp
  struct Verdict {
    double norm = 0;
    double clip_factor = 1;
    bool finite = true;
  };
  Result<Verdict> judge();
  Result<void> exchange(ConstHostSpan mine, HostSpan all);
  Result<void> agree(const Result<void>& mine);
  Result<void> check_all_landed() const;
  void finish_step();

  Options options_;
  swap::Runtime& runtime_;
  tiers::Device& device_;
  Communicator& communicator_;

  bool pinned_ = false;
  DeviceSpan arena_;
  std::unique_ptr<tiers::MemoryBudget> device_budget_;
  std::unique_ptr<tiers::Stream> copy_in_, copy_out_, communication_;
  std::unique_ptr<tiers::Event> compute_progress_;
  TurnOrder order_, landing_order_;
  std::optional<HopContext> hops_;
  std::vector<FlatState> flats_;
  std::vector<tiers::Stream*> unit_streams_;
  std::deque<std::uint32_t> landings_;  // flats whose full gradient is live until it has landed, oldest first
  std::vector<std::uint32_t> unit_order_;  // predicted, then recorded: units in the order of acquire
  std::vector<std::uint32_t> recording_;
  std::size_t unit_position_ = 0;

  OffloadedOptimizer optimizer_;
  std::uint32_t micro_batches_ = 1;
  std::optional<float> learning_rate_;
  std::optional<Verdict> verdict_;  // of a step that is incomplete
  std::optional<Error> failure_;
};

}  // namespace penstock::zero
