#pragma once

#include <penstock/base/units.hpp>
#include <penstock/tiers/tier.hpp>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

namespace penstock::tiers {

/// Identifies a tensor of one runtime. It is not used again after remove(): calls with it are refused from then on, as
/// those with a default TensorId, or with one of another runtime of the process, are.
enum class TensorId : std::uint64_t {};

/// A tensor's durable name: equal in every run of the same model on the same number of ranks. It seeds the tensor's
/// checksums, so that bytes of another tensor never verify.
///
/// A storage-only user chooses any keys, unique in the runtime: `{.unit = 7}`.
struct TensorKey {
  std::uint32_t owner = 0;  ///< the engine, where several share a runtime
  std::uint32_t unit = 0;   ///< of the model layout
  std::uint32_t group = 0;  ///< the unit's flat for this optimizer group
  Purpose role = Purpose::scratch;
  std::uint64_t first = 0, count = 0;  ///< element range of that flat, counted over all ranks

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

/// A tensor's properties. Fixed when it is added, except `extent`, which a store may change.
struct TensorDescription {
  std::string name;    ///< for messages: "block3 optimizer tile 7"
  TensorKey key = {};  ///< unique in the runtime
  Purpose purpose = Purpose::scratch;
  ByteCount size;             ///< payload, > 0
  ByteCount block = 256_KiB;  ///< bytes covered by one checksum, > 0
  /// Its place on disk, set by Runtime::add(); none: it has no copy on disk.
  std::optional<Extent> extent = {};
  bool write_behind = false;  ///< stored as soon as a modify or overwrite lease ends
  bool retain = true;         ///< a clean host copy is kept while there is room; false: dropped at once
  /// With an extent: its home is memory. It is evicted only when nothing else makes room for a request that waits, and
  /// with write_behind it is stored only then, or by Runtime::flush(). What Runtime::limit_memory() takes is taken from
  /// these homes, the last added first: those tensors have none then.
  bool home_in_memory = false;
  bool sealed_in_pass = false;  ///< the caller verifies and updates the checksums itself, block by block
  bool transient = false;       ///< its contents are not needed after its lease ends
  bool stored_from_outside =
      false;  ///< an engine stores it from memory of its own, so it may exceed the host budget

  /// True for a tensor without extent whose contents must survive its lease: its host range is reserved from add() to
  /// remove().
  [[nodiscard]] bool stays_in_memory() const { return !extent && !transient; }
};

}  // namespace penstock::tiers
