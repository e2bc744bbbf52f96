#pragma once

#include "zero/comm/transport.hpp"

#include <penstock/base/result.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace penstock::zero {

/// What the ranks compare before a transfer moves bytes: its kind, place in the step, and sizes. Without padding, so
/// that its bytes can be sent.
struct TransferHeader {
  std::uint64_t step = 0;
  std::uint64_t bytes = 0;     ///< of all flats
  std::uint64_t contents = 0;  ///< a hash of the flats and their sizes: two may be swapped
  std::uint32_t unit = 0, group = 0, micro_batch = 0;
  std::uint32_t flats = 0;
  Transfer::Kind kind{};
  CollectiveSignature::Subject subject{};
  DType dtype{};
  std::array<std::uint8_t, 5> unused{};

  [[nodiscard]] static TransferHeader of(const Transfer& transfer);
  /// `bytes` begin with those of a header of a rank of this job. Precondition: they are long enough.
  [[nodiscard]] static TransferHeader of(std::span<const std::byte> bytes);
  [[nodiscard]] std::span<const std::byte> as_bytes() const;

  bool operator==(const TransferHeader&) const = default;
};

/// "reduce-scatter of 4.0 KiB of bf16, gradients of unit 3, …". An all-gather moves bytes of any type. Of several
/// flats, names their number, and others differently.
[[nodiscard]] std::string to_string(const TransferHeader& header);

// What ranks gather on the control channel before a transfer: its header, and the bytes of an exchange.

[[nodiscard]] std::vector<std::byte> announcement_of(const Transfer& transfer);
/// Compares those of all ranks with that of rank `rank`, and gives an exchange its bytes. Errors: invalid_argument,
/// naming the ranks and their transfers.
[[nodiscard]] Result<void> take_announcements(std::uint32_t rank, const Transfer& transfer,
                                              const std::vector<std::vector<std::byte>>& all);

/// "3 flats (#1234) with ", where the number follows from the hash of them; empty for one flat.
[[nodiscard]] std::string flats_text(std::uint64_t flats, std::uint64_t contents);

}  // namespace penstock::zero
