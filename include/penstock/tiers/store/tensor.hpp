#pragma once

#include <penstock/base/units.hpp>
#include <penstock/tiers/tier.hpp>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

namespace penstock::tiers {

/// A tensor of one runtime, from add to remove; afterwards another tensor may get the number.
enum class TensorId : std::uint32_t {};

/// A tensor's durable name: the same in every run of a model on as many ranks. Checksums are seeded with it and
/// extents belong to it, so that no bytes pass for those of another tensor.
///
/// A storage-only user gives any key, each once in a runtime: `{.unit = 7}`.
struct TensorKey {
  std::uint32_t owner = 0;  ///< which engine, where several share a runtime
  std::uint32_t unit = 0;   ///< of the model layout
  std::uint32_t group = 0;  ///< the unit's flat for this optimizer group
  Purpose role = Purpose::scratch;
  std::uint64_t first = 0, count = 0;  ///< elements of that flat, over all ranks

  auto operator<=>(const TensorKey&) const = default;
  /// A hash of all fields, equal on every machine.
  [[nodiscard]] std::uint64_t seed() const;
};
[[nodiscard]] std::string to_string(const TensorKey& key);

/// A byte range of one path's swap file. `length` is the payload rounded up to the file's alignment.
struct Extent {
  std::uint32_t path = 0;
  FileOffset offset;
  ByteCount length;

  bool operator==(const Extent&) const = default;
};

/// What a tensor is, fixed when it is added, but for where it lives on disk.
struct TensorDescription {
  std::string name;  ///< for messages: "block3 optimizer tile 7"
  TensorKey key;     ///< of no other tensor of the runtime
  Purpose purpose = Purpose::scratch;
  ByteCount size;                ///< payload, > 0
  ByteCount block = 256_KiB;     ///< bytes covered by one checksum, > 0
  std::optional<Extent> extent;  ///< where it lives on disk; none: in memory only
  bool write_behind = false;     ///< stored as soon as a modify or overwrite lease ends
  bool retain = true;            ///< a clean host copy is kept while there is room; false: dropped at once
  bool sealed_in_pass = false;  ///< the caller that modifies it verifies and seals block by block in its pass
  bool transient = false;       ///< its contents are worthless once its lease ends

  /// Its host range is reserved from add to remove: it has no extent, and its contents may outlast a lease.
  [[nodiscard]] bool stays_in_memory() const { return !extent && !transient; }
};

}  // namespace penstock::tiers
