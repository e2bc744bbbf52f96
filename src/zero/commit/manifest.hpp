#pragma once

#include <penstock/base/dtype.hpp>
#include <penstock/base/result.hpp>
#include <penstock/cpu_adam/state_format.hpp>
#include <penstock/tiers/store/tensor.hpp>
#include <penstock/zero/config/loss_scaler.hpp>
#include <penstock/zero/layout/model_layout.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock::zero {

/// A tensor of a rank in one of its swap files, and the checksum of each of its blocks (see BlockTable).
struct CommittedTensor {
  tiers::TensorKey key;    ///< role: optimizer_tile or parameter_shard. Seeds the checksums
  ByteCount size, block;   ///< as in TensorDescription
  std::uint32_t file = 0;  ///< index into Manifest::files
  FileOffset offset;       ///< of its first byte there
  ByteCount length;        ///< of its extent, `size` or more
  std::uint64_t step = 0;  ///< the optimizer step of its contents
  std::vector<std::uint64_t> checksums;

  bool operator==(const CommittedTensor&) const = default;
};

/// All that a rank needs to continue from one generation of a run: what is in memory only, and where the rest is. A
/// value; docs/checkpoints.md describes its bytes.
struct Manifest {
  static constexpr std::uint32_t format_version = 3;

  /// A random number of the run that the directory belongs to, equal on all ranks and in all generations.
  std::array<std::uint64_t, 2> run = {};
  std::uint64_t generation = 0;  ///< counted from 1
  /// A random number of the commit, equal on all ranks: manifests of one generation, of which an earlier process could
  /// not complete the first ones, do not fit together.
  std::uint64_t attempt = 0;
  /// The last complete commit when this one was made; 0: there was none. That it was complete is certain, whatever has
  /// become of this one.
  std::uint64_t before_generation = 0, before_attempt = 0;
  std::uint32_t rank = 0, ranks = 1;
  std::uint32_t engine = 0;  ///< Engine::Options::engine_number

  ModelLayout model;
  DType dtype = DType::fp32;  ///< of parameters
  cpu_adam::StateFormat format = cpu_adam::StateFormat::fp32;
  cpu_adam::Optimizer optimizer = cpu_adam::Optimizer::adam;

  std::uint64_t completed_steps = 0, skipped_steps = 0;
  LossScaler::State loss_scaler;
  std::vector<OptimizerGroup> groups;  ///< as Engine::set_groups() has left them
  std::vector<std::byte> client;       ///< of the trainer

  std::vector<std::string> files;  ///< absolute paths
  std::vector<CommittedTensor> tensors;

  [[nodiscard]] std::vector<std::byte> encode() const;
  static constexpr std::size_t header_bytes = 32;
  /// The size of a whole manifest that begins with `header`; none, if that is not the beginning of one.
  [[nodiscard]] static std::optional<ByteCount> size_in(std::span<const std::byte> header);
  /// The error of a file that ends too early.
  [[nodiscard]] static Error too_short(const std::string& name, ByteCount wanted, ByteCount got);
  /// `name` is the file's, for errors.
  ///
  /// Errors: truncated, if bytes are missing (wanted, got); corrupted, if the checksum does not match, or the contents
  /// contradict each other; invalid_argument, if it is no manifest; unsupported, if another version wrote it.
  [[nodiscard]] static Result<Manifest> decode(const std::string& name, std::span<const std::byte> bytes);

  friend bool operator==(const Manifest& a, const Manifest& b) { return a.encode() == b.encode(); }
};

}  // namespace penstock::zero
