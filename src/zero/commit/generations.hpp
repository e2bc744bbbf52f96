#pragma once

#include "zero/commit/manifest.hpp"

#include <penstock/base/result.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace penstock::zero {

/// A manifest that a rank has found: of which rank and commit it is.
struct FoundManifest {
  std::array<std::uint64_t, 2> run = {};
  std::uint64_t generation = 0, attempt = 0;
  std::uint64_t before_generation = 0, before_attempt = 0;
  std::uint32_t ranks = 0, rank = 0;

  auto operator<=>(const FoundManifest&) const = default;
};

[[nodiscard]] FoundManifest found_of(const Manifest& manifest);

/// Whether the manifest is certainly none of the last complete commit, as the other tells, which the same rank has. Its
/// bytes may have been overwritten.
[[nodiscard]] bool is_superseded(const Manifest& manifest, const Manifest& by);

/// The last generation of which every rank of the run that committed it has a manifest; none, if there is no such one.
/// Pure: every rank that has the same manifests chooses the same.
///
/// Errors: invalid_argument, if there are whole generations of two runs.
[[nodiscard]] Result<std::optional<FoundManifest>> choose_generation(std::span<const FoundManifest> found,
                                                                     const std::string& directory);

/// A commit, and a rank that has no manifest of it.
struct MissingPart {
  std::uint64_t generation = 0;
  std::uint32_t ranks = 0, rank = 0;
};
/// Of the newest commit that lacks one. A run that is killed leaves one; else a part was lost.
[[nodiscard]] std::optional<MissingPart> newest_missing_part(std::span<const FoundManifest> found);

}  // namespace penstock::zero
