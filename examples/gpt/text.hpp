#pragma once

#include <penstock/base/result.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

namespace gpt {

/// The position of a micro-batch in a run.
struct BatchPosition {
  std::uint64_t step, micro_batch, rank;
};

struct BatchSize {
  std::uint32_t sequences, context;
};

/// The training text and the rule that selects batches from it. Safe to read from any thread.
class Text {
 public:
  /// A device has no end, and the text is kept in memory.
  static constexpr penstock::ByteCount size_max{256 << 20};

  /// Loads `file`; without one, the licences that every Debian system contains (~270 kB of English
  /// in /usr/share/common-licenses), in order of name.
  ///
  /// Errors: not_found, permission, io, and invalid_argument for text longer than size_max or too short for one
  /// sequence of `context` tokens and its targets.
  [[nodiscard]] static penstock::Result<Text> load(const std::optional<std::filesystem::path>& file,
                                                   std::uint32_t context);

  [[nodiscard]] penstock::ByteCount size() const { return penstock::ByteCount(bytes_.size()); }

  /// Selects sequences × context tokens, each with its target, the byte after it. The start of a sequence depends only
  /// on the seed, the position and the sequence's number, so that every rank and every resumed run agree. Both spans
  /// hold sequences × context bytes; the context is at most that given to load().
  void batch(std::uint64_t seed, BatchPosition position, BatchSize size, std::span<std::uint8_t> tokens,
             std::span<std::uint8_t> targets) const;

 private:
  explicit Text(std::vector<std::uint8_t> bytes) : bytes_(std::move(bytes)) {}

  std::vector<std::uint8_t> bytes_;
};

}  // namespace gpt
