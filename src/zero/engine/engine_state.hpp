#pragma once

#include "zero/engine/flat_state.hpp"
#include "zero/engine/hops.hpp"
#include "zero/engine/offloaded_optimizer.hpp"
#include "zero/layout/flat_residency.hpp"

#include <penstock/zero/engine/engine.hpp>

#include <optional>
#include <string>
#include <vector>

namespace penstock::zero {

/// What one rank's engine holds. Used by the trainer's thread; the mover touches only what FlatState and
/// TurnOrder say.
class Engine::State : private FlatResidency::Effects {
 public:
  explicit State(Options options);
  ~State() override;
  Result<void> open();

  Result<void> initialize(const Fill& fill);
  Result<void> begin_step(const StepOptions& step);
  Result<std::vector<DeviceTensor>> acquire(std::uint32_t unit, tiers::Stream& stream);
  void release(std::uint32_t unit) noexcept;
  Result<std::vector<GradientSlot>> gradients(std::uint32_t unit, tiers::Stream& stream);
  Result<void> reduce(std::uint32_t unit, tiers::Stream& stream);
  Result<StepOutcome> step();
  Result<std::string> digest();
  [[nodiscard]] Status status() const;

  std::uint64_t current_step = 0;
  ShardLayout shards;
  std::string notes;

 private:
  // engine_state.cpp
  Result<void> add_tensors(std::uint32_t index, std::uint64_t& tile_number);
  void predict();
  Result<void> fail(Error error);
  [[nodiscard]] Result<void> usable(const char* operation) const;
  [[nodiscard]] Result<void> step_complete(const char* operation) const;
  [[nodiscard]] Result<void> ready(const char* operation) const;
  [[nodiscard]] Result<void> between_steps(const char* operation) const;
  Result<void> heard(Result<void> of_stores);
  Result<void> check_unit(const char* operation, std::uint32_t unit) const;

  // gather.cpp
  Result<void> gather(std::uint32_t flat) override;
  Result<void> drop(std::uint32_t flat) override;
  Result<void> planned(Result<void> decided);
  Result<void> wait_for_gather(FlatState& flat);
  [[nodiscard]] DeviceTensor at(const tiers::Reservation& range, ElementCount count) const;

  // reduce.cpp
  Result<void> open_gradient(std::uint32_t flat) override;
  Result<void> settle(std::uint32_t flat) override;
  void start_reduce(FlatState& flat);

  // step.cpp
  struct Verdict {
    double norm = 0;
    double clip_factor = 1;
    bool finite = true;
    TimePoint gradient_wait{0};
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
  std::optional<FlatResidency> residency_;
  std::unique_ptr<tiers::Stream> copy_in_, copy_out_, communication_;
  std::unique_ptr<tiers::Event> compute_progress_;
  std::vector<tiers::TensorId> tensors_;  // all that this engine has added to the store
  TurnOrder order_, landing_order_;
  std::optional<HopContext> hops_;
  std::vector<FlatState> flats_;
  std::vector<tiers::Stream*> unit_streams_;
  tiers::Stream* gradient_stream_ = nullptr;  // of the gradients() under way

  OffloadedOptimizer optimizer_;
  std::uint32_t micro_batches_;
  std::optional<float> learning_rate_;
  bool initialized_ = false;
  std::optional<Verdict> verdict_;  // of a step that is incomplete
  std::optional<Error> failure_;
};

}  // namespace penstock::zero
