#pragma once

#include <penstock/base/result.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

namespace gpt {

/// Which micro-batch of a run.
struct BatchPosition {
  std::uint64_t step, micro_batch, rank;
};

struct BatchSize {
  std::uint32_t sequences, context;
};

/// Bytes to learn from, and the rule that draws batches from them. Safe to read from any thread.
class Text {
 public:
  /// The bytes of `file`; without one, the licences that every Debian system carries (~270 kB of English
  /// in /usr/share/common-licenses), in order of name.
  ///
  /// Errors: not_found, permission, io, and invalid_argument for text too short for one sequence of
  /// `context` tokens and its targets.
  [[nodiscard]] static penstock::Result<Text> load(const std::optional<std::filesystem::path>& file,
                                                   std::uint32_t context);

  [[nodiscard]] penstock::ByteCount size() const { return penstock::ByteCount(bytes_.size()); }

  /// Draws sequences × context tokens, each with its target, the byte after it. Where a sequence starts
  /// depends on seed, position and its number alone, so every rank and every resumed run agree. Both spans
  /// hold sequences × context bytes; the context is at most load()'s.
  void batch(std::uint64_t seed, BatchPosition position, BatchSize size, std::span<std::uint8_t> tokens,
             std::span<std::uint8_t> targets) const;

 private:
  explicit Text(std::vector<std::uint8_t> bytes) : bytes_(std::move(bytes)) {}

  std::vector<std::uint8_t> bytes_;
};

}  // namespace gpt
