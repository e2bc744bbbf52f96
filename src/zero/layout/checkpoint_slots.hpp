#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace penstock::zero {

/// Which activation checkpoints are in the slots of the device's memory. It moves no bytes.
///
/// Decides from the order of uses: a step is expected to be as the last one. In the first step, and once a step
/// differs, none is loaded ahead, and of those that are needed the one that was used longest ago leaves first.
///
/// Owned by the trainer's thread.
class CheckpointSlots {
 public:
  /// What a use needs in the slot.
  enum class Contents : std::uint8_t { undefined, loaded };

  CheckpointSlots(std::uint32_t checkpoints, std::uint32_t slots)
      : places_(checkpoints), occupants_(slots), left_(checkpoints, true), positions_(checkpoints) {}

  [[nodiscard]] std::optional<std::uint32_t> slot_of(std::uint32_t checkpoint) const {
    return places_[checkpoint].slot;
  }
  [[nodiscard]] const std::vector<std::optional<std::uint32_t>>& occupants() const { return occupants_; }

  /// The trainer uses the checkpoint now.
  void note_use(std::uint32_t checkpoint, Contents needs);
  /// The slot for a checkpoint that has none: a free one, that of a checkpoint which is not needed any more, or that
  /// of one which is used later than `before` uses from now. None, if all others are leased or used before.
  [[nodiscard]] std::optional<std::uint32_t> choose(std::uint64_t before = 0) const;
  /// Precondition: the slot is free and the checkpoint has none.
  void place(std::uint32_t checkpoint, std::uint32_t slot);
  /// The checkpoint leaves its slot. `moved`: it had to make room, so that it is expected to in the next step too.
  void remove(std::uint32_t checkpoint, bool moved);
  void lease(std::uint32_t checkpoint) { places_[checkpoint].leased = true; }
  void release(std::uint32_t checkpoint) { places_[checkpoint].leased = false; }
  [[nodiscard]] bool is_leased(std::uint32_t checkpoint) const { return places_[checkpoint].leased; }
  /// The checkpoint's contents are not needed any more, until its next use.
  void end_contents(std::uint32_t checkpoint) { places_[checkpoint].needed = false; }

  /// The next checkpoint to load ahead, and how many uses from now it is needed. It must have been written, which
  /// `is_written(checkpoint)` tells.
  struct Ahead {
    std::uint32_t checkpoint;
    std::uint64_t uses;
  };
  template <class IsWritten>
  [[nodiscard]] std::optional<Ahead> next_ahead(const IsWritten& is_written) const {
    if (!follows_) return std::nullopt;
    for (std::size_t at = position_; at < order_.size() && at < position_ + occupants_.size(); ++at) {
      const auto& [checkpoint, needs] = order_[at];
      if (needs == Contents::undefined || places_[checkpoint].slot || !is_written(checkpoint)) continue;
      return Ahead{checkpoint, at - position_};
    }
    return std::nullopt;
  }
  /// Whether the checkpoint had to leave its slot in the last step: it is copied out as soon as it is written.
  [[nodiscard]] bool is_expected_to_leave(std::uint32_t checkpoint) const { return left_[checkpoint]; }

  /// Whether a checkpoint was used since the last step.
  [[nodiscard]] bool was_used() const { return !recording_.empty(); }
  /// Precondition: all slots are free.
  void end_step();
  /// Forgets what was recorded, of a step that ends early or of an evaluation. Precondition: all slots are free.
  void abandon_step();

 private:
  struct Use {
    std::uint32_t checkpoint;
    Contents needs;
    bool operator==(const Use&) const = default;
  };
  struct Place {
    std::optional<std::uint32_t> slot;
    bool leased = false, needed = false;
    std::uint64_t last_use = 0;
  };
  /// Uses from now until the checkpoint is used, in the predicted order; the largest number when it is not.
  [[nodiscard]] std::uint64_t uses_until(std::uint32_t checkpoint) const;

  std::vector<Place> places_;  // by checkpoint
  std::vector<std::optional<std::uint32_t>> occupants_;
  std::vector<bool> left_, leaving_;  // in the last step; in this one
  std::vector<Use> order_, recording_;
  std::vector<std::vector<std::size_t>> positions_;  // by checkpoint: in order_, ascending
  std::size_t position_ = 0;
  bool follows_ = false;  // the uses are those of order_ until now
  std::uint64_t uses_ = 0;
};

}  // namespace penstock::zero
