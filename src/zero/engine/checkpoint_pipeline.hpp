#pragma once

#include "zero/engine/engine_context.hpp"
#include "zero/layout/checkpoint_slots.hpp"

#include <penstock/zero/engine/engine.hpp>

#include <string>
#include <utility>
#include <vector>

namespace penstock::zero {

/// Keeps the activation checkpoints of a step: in slots of the device's memory, of which CheckpointSlots decides, and
/// in tensors of the runtime. A checkpoint that had to leave its slot in the last step is copied to host memory as soon
/// as it is written, another one when it must leave; one that is needed soon is copied back ahead of its use.
///
/// Used by the trainer's thread.
class CheckpointPipeline {
 public:
  /// `tensors`: one for each checkpoint; none, if there is a slot for each.
  CheckpointPipeline(EngineContext& context, const MemoryPlan::Checkpoints& plan, DeviceSpan slots,
                     std::vector<tiers::TensorId> tensors);

  /// The checkpoint's slot, which work that is enqueued on `stream` from now on may use. Blocks.
  ///
  /// Errors: invalid_argument, for a checkpoint that has a lease, or that is read before it was written;
  /// budget_too_small, when all slots are leased; those of the tiers, which fail the engine.
  Result<DeviceSpan> lease(std::uint32_t checkpoint, CheckpointUse use, tiers::Stream& stream);
  Result<void> release(std::uint32_t checkpoint);

  /// Errors: failed_state, naming a leased checkpoint.
  [[nodiscard]] Result<void> check_no_leases(const char* operation) const;
  /// A step begins: forgets an evaluation since the last one. Precondition: none is leased. Errors: as lease().
  Result<void> begin_step();
  /// Forgets the contents of all checkpoints. Precondition: none is leased. Errors: as lease().
  Result<void> forget_contents();
  /// Precondition: forget_contents().
  void end_step() { slots_.end_step(); }
  /// The slots with contents that are needed, with their names. Precondition: as abandon_step().
  [[nodiscard]] std::vector<std::pair<std::string, DeviceSpan>> contents() const;
  /// The tensors that are only in host memory.
  struct InHost {
    std::string name;
    tiers::TensorId tensor;
    bool has_contents;
  };
  [[nodiscard]] std::vector<InHost> in_host() const;
  /// After them no work uses the slots.
  [[nodiscard]] std::vector<tiers::Fence> last_uses() const;
  /// The memory of all slots, for Engine::unpark(), which moves it.
  [[nodiscard]] DeviceSpan& memory() { return memory_; }
  /// Precondition: none is leased, and no copy is in flight.
  void abandon_step();
  /// Whether no copy is in flight. Call with the runtime's lock held.
  [[nodiscard]] bool idle() const;

 private:
  struct Checkpoint {
    tiers::TensorId tensor{};
    bool written = false;  // it has contents
    bool stored = false;   // a store of them has begun
    CheckpointUse use = CheckpointUse::read;
    const void* fenced = nullptr;  // the native stream of the last fence in writable_ that a lease has left
    tiers::Stream* stream = nullptr;  // of the lease
    tiers::Fence written_at;          // its contents are complete after it
    MoveProgress store, load;
    tiers::Fence stored_at, loaded_at;
  };

  [[nodiscard]] Error no_slot(const char* operation) const;
  Result<void> wait_for_contents(std::uint32_t checkpoint, tiers::Stream& stream);
  Result<void> wait_for_slot(std::uint32_t checkpoint, tiers::Stream& stream);
  Result<void> take_slot(std::uint32_t checkpoint, std::uint32_t slot);
  Result<void> free_slot(std::uint32_t checkpoint, bool keep);
  Result<void> start_store(std::uint32_t checkpoint);
  void start_load(std::uint32_t checkpoint);
  /// Does not wait: a copy that is not enqueued yet is left for a later call.
  void load_ahead();
  void discard_unneeded();
  [[nodiscard]] bool has_reached(const MoveProgress& progress, bool MoveProgress::*state) const;
  Result<void> wait_until_ordered(const MoveProgress& progress);
  Result<void> wait_until_done(const MoveProgress& progress);
  [[nodiscard]] DeviceSpan slot_of(std::uint32_t checkpoint) const;
  [[nodiscard]] std::string name(std::uint32_t checkpoint) const {
    return "checkpoint " + std::to_string(checkpoint);
  }

  EngineContext& context_;
  const MemoryPlan::Checkpoints plan_;
  DeviceSpan memory_;
  CheckpointSlots slots_;
  std::vector<Checkpoint> checkpoints_;
  std::vector<std::vector<tiers::Fence>> writable_;  // by slot: after them it may be written
};

}  // namespace penstock::zero
