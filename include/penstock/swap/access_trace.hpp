#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/units.hpp>
#include <penstock/swap/lease.hpp>
#include <penstock/tiers/tier.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::swap {

/// The uses of tensors in host memory in one round, such as a training step, in their order. Training repeats it, so a
/// trace predicts the next rounds: Runtime::predict().
///
///     runtime->begin_trace();
///     step();
///     auto trace = runtime->end_trace("train").value();
///     PENSTOCK_TRY(save_trace(trace, "train.trace"));
struct AccessTrace {
  /// What replay and comparison need to know of a tensor.
  struct Tensor {
    std::string name;  ///< as in TensorDescription
    ByteCount size;    ///< payload, > 0
    tiers::Purpose purpose = tiers::Purpose::scratch;
    bool on_disk = true;        ///< it has an extent; otherwise it stays in memory, or is transient
    bool write_behind = false;  ///< these as in TensorDescription
    bool retain = true;
    bool home_in_memory = false;
    bool transient = false;
    bool operator==(const Tensor&) const = default;
  };
  struct Use {
    std::uint32_t tensor = 0;  ///< index into `tensors`
    Access access = Access::read;
    bool operator==(const Use&) const = default;
  };

  std::string label;  ///< of the round: "train", "eval"
  std::vector<Tensor> tensors;
  std::vector<Use> uses;
};

/// Errors: invalid_argument, for a use of a tensor that is not listed, a size of zero or above 4 TiB, an empty name, a
/// label or a name with a control character, such as a line break, and a home in memory without a place on disk.
[[nodiscard]] Result<void> check_trace(const AccessTrace& trace);

/// Where a trace deviates from the one that was expected.
struct TraceDifference {
  std::uint64_t use = 0;    ///< index into AccessTrace::uses, of both
  std::string wanted, got;  ///< "read of block3 parameter shard, 8 MiB", or "the end"
  bool operator==(const TraceDifference&) const = default;
};
/// "use 17: wanted …, got …"
[[nodiscard]] std::string to_string(const TraceDifference& difference);
/// The first use that has another tensor or another access; none, if both have the same uses. Tensors are compared
/// by name, size and purpose. A use of a tensor that is not listed is a difference.
[[nodiscard]] std::optional<TraceDifference> first_difference(const AccessTrace& expected,
                                                              const AccessTrace& actual);

/// The first tensor, in the order of use, that `actual` has on disk or in memory, writes or drops otherwise than
/// `expected`, of those that are else alike in a use of the same number; null, if there is none. What a round moves
/// depends on it, but not the order of its uses. It belongs to `expected`.
[[nodiscard]] const AccessTrace::Tensor* first_kept_elsewhere(const AccessTrace& expected,
                                                              const AccessTrace& actual);

/// The text of a trace file, see docs/policies.md. Of a trace that check_trace() refuses it cannot be parsed.
[[nodiscard]] std::string to_text(const AccessTrace& trace);
/// Errors: invalid_argument, with the line, what was wanted there and what was found.
[[nodiscard]] Result<AccessTrace> parse_trace(std::string_view text);

/// Replaces the file once the trace is written beside it: an error leaves what was there. Errors: those of
/// check_trace(); already_exists, for a file that is no trace; invalid_argument, for a directory, a device, a pipe or a
/// socket; not_found, permission, no_space and io, of the file.
[[nodiscard]] Result<void> save_trace(const AccessTrace& trace, const std::filesystem::path& file);
/// Errors: not_found, permission, io; invalid_argument, for no regular file and for more than 4 GiB; those of
/// parse_trace(), with the file.
[[nodiscard]] Result<AccessTrace> load_trace(const std::filesystem::path& file);

}  // namespace penstock::swap
