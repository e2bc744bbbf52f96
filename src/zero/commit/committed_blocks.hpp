#pragma once

#include "zero/commit/manifest.hpp"

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/tiers/io/file_system.hpp>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>

namespace penstock::zero {

/// Blocks of a committed tensor that are read at a time.
inline constexpr std::uint64_t window_blocks = 32;

/// Host memory for reads with direct I/O, whole pages.
class PageBuffer {
 public:
  /// Errors: no_space.
  [[nodiscard]] static Result<PageBuffer> create(ByteCount size);
  [[nodiscard]] HostSpan bytes() const { return {memory_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  ByteCount size_;
};

/// Verifies `bytes`, those of `tensor` from `begin` on, whole blocks but for the last one. `name` is the file's.
///
/// Errors: corrupted, with the file, the offset and the block.
Result<void> verify_blocks(const std::string& name, const CommittedTensor& tensor, ByteCount begin,
                           HostSpan bytes);

/// Reads `size` bytes of `tensor` from `begin` on, whole blocks but for the last one, into `buffer`, and verifies them.
/// `name` is the file's. Returns the part of the buffer that they are in. Blocks.
///
/// Errors: those of verify_blocks() and File::read().
[[nodiscard]] Result<HostSpan> read_blocks(const tiers::File& file, const std::string& name,
                                           const CommittedTensor& tensor, ByteCount begin, ByteCount size,
                                           const PageBuffer& buffer);

}  // namespace penstock::zero
