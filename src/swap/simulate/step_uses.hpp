#pragma once

#include <penstock/swap/access_trace.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace penstock::swap {

/// Whether the use is one of an engine's update: any of an optimizer tile, reads of gradients and writes of shards.
[[nodiscard]] bool is_update(const AccessTrace& trace, const AccessTrace::Use& use);

/// The uses of a round, divided between the trainer and an update beside it. A use is given by its index in
/// AccessTrace::uses.
struct StepUses {
  /// What the update does for one flat: it holds its gradient and its shard while it uses its tiles.
  struct Flat {
    std::size_t begin, end;    // of `of_update`
    std::size_t added_at = 0;  // how many uses of the trainer end before it waits for its update; 0: all
  };
  std::vector<std::uint32_t> of_trainer, of_update;
  std::vector<Flat> flats;
  std::vector<std::optional<std::uint32_t>> flat_of;  // by tensor of the trace
  std::vector<std::uint32_t> added_after;             // flats with added_at > 0, sorted by it
  std::vector<bool> is_discarded;                     // by tensor of the trace: once the update has read it
  // Where it begins in `of_trainer`: at the first gradient that is not used again in the round; the end, if none is.
  std::size_t last_micro_batch = 0;

  /// Without `update_beside` the trainer makes all uses. `update_in_backward`: flats have `added_at`.
  [[nodiscard]] static StepUses divide(const AccessTrace& trace, bool update_beside, bool update_in_backward);
};

}  // namespace penstock::swap
