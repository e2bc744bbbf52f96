#include "zero/commit/manifest.hpp"

#include "base/byte_archive.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstring>
#include <type_traits>
#include <utility>

namespace penstock {

template <class T>
concept Quantity = std::same_as<T, ByteCount> || std::same_as<T, ElementCount> || std::same_as<T, FileOffset>;
template <class Archive, class Q>
requires Quantity<std::remove_const_t<Q>>
static void fields(Archive& archive, Q& quantity) {
  std::uint64_t value = quantity.value();
  archive(value);
  if constexpr (!std::is_const_v<Q>) quantity = Q(value);
}
static bool is_known(DType dtype) {
  return dtype == DType::fp32 || dtype == DType::bf16 || dtype == DType::fp16;
}

namespace tiers {
static bool is_known(Purpose purpose) {
  return static_cast<std::size_t>(purpose) < purpose_count;
}
template <class Archive>
static void fields(Archive& archive,
                   auto& key) requires std::same_as<std::remove_cvref_t<decltype(key)>, TensorKey> {
  archive(key.owner, key.unit, key.group, key.role, key.first, key.count);
}
}  // namespace tiers

namespace cpu_adam {
static bool is_known(Optimizer optimizer) {
  return to_string(optimizer) != "unknown";
}
}  // namespace cpu_adam
namespace kernels {
static bool is_known(StateFormat format) {
  return to_string(format) != "unknown";
}
}  // namespace kernels

namespace zero {

// The fields of each part of a manifest, for both directions.
template <class Archive>
static void fields(Archive& archive, auto& part) {
  using P = std::remove_cvref_t<decltype(part)>;
  if constexpr (std::same_as<P, Manifest>) {
    archive(part.run, part.generation, part.attempt, part.before_generation, part.before_attempt, part.rank,
            part.ranks, part.engine, part.model, part.dtype, part.format, part.optimizer,
            part.completed_steps, part.skipped_steps, part.loss_scaler, part.groups, part.client, part.files,
            part.tensors);
  } else if constexpr (std::same_as<P, CommittedTensor>) {
    archive(part.key, part.size, part.block, part.file, part.offset, part.length, part.step, part.checksums);
  } else if constexpr (std::same_as<P, ModelLayout>) {
    archive(part.units, part.groups);  // checkpoints of activations are empty between steps
  } else if constexpr (std::same_as<P, UnitLayout>) {
    archive(part.name, part.parameters, part.shared);
  } else if constexpr (std::same_as<P, ParameterLayout>) {
    archive(part.name, part.count, part.group, part.shape);
  } else if constexpr (std::same_as<P, ParameterId>) {
    archive(part.unit, part.index);
  } else if constexpr (std::same_as<P, LossScaler::State>) {
    archive(part.scale, part.hysteresis, part.updates, part.last_overflow);
  } else if constexpr (std::same_as<P, OptimizerGroup>) {
    archive(part.frozen, part.use_muon, part.learning_rate_factor, part.betas, part.epsilon,
            part.weight_decay);
  }
}

namespace {

constexpr std::array<char, 8> magic = {'P', 'N', 'S', 'T', 'K', 'M', 'F', '\n'};

struct Header {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t reserved;
  std::uint64_t size;      // of the body
  std::uint64_t checksum;  // XXH3-64 of everything, with 0 here
};
static_assert(sizeof(Header) == 32);

std::uint64_t checksum_of(Header header, std::span<const std::byte> body) {
  header.checksum = 0;
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  XXH3_64bits_update(&state, &header, sizeof header);
  XXH3_64bits_update(&state, body.data(), body.size());
  return XXH3_64bits_digest(&state);
}

Error damaged(const std::string& name) {
  return Error(ErrorCode::corrupted, "Manifest::decode")
      .object(name)
      .advice("bring the whole file back; `penstock inspect` prints the commits that are whole");
}

/// What a manifest that verifies, but was not written by encode(), could contain.
Result<void> check(const std::string& name, const Manifest& manifest) {
  const auto contradicts = [&name](std::string what) {
    return damaged(name).reason("its contents contradict each other: " + std::move(what));
  };
  if (manifest.ranks == 0 || manifest.rank >= manifest.ranks)
    return contradicts("the rank is none of its ranks");
  if (manifest.generation == 0) return contradicts("the generation is 0");
  if (manifest.before_generation >= manifest.generation)
    return contradicts("the commit before it has a higher number");
  if (auto valid = manifest.model.validate(); !valid) return contradicts(valid.error().message());
  if (auto valid = validate("Manifest::decode", manifest.groups); !valid)
    return contradicts(valid.error().message());
  if (manifest.groups.size() != manifest.model.groups.size())
    return contradicts("it has settings of another number of groups");
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    const CommittedTensor& tensor = manifest.tensors[i];
    const std::string which = "tensor " + to_string(tensor.key);
    if (tensor.key.role != tiers::Purpose::optimizer_tile &&
        tensor.key.role != tiers::Purpose::parameter_shard)
      return contradicts(which + " holds neither optimizer states nor parameters");
    if (tensor.size.is_zero() || tensor.block.is_zero()) return contradicts(which + " has no bytes");
    constexpr ByteCount block_max(std::uint64_t{1} << 40);
    if (tensor.block > block_max) return contradicts(which + " has blocks of " + to_string(tensor.block));
    constexpr std::uint64_t elements_max = ModelLayout::model_elements_max.value();
    if (tensor.key.first > elements_max || tensor.key.count > elements_max)
      return contradicts(which + " has elements that no model has");
    const std::uint64_t blocks = (tensor.size.value() - 1) / tensor.block.value() + 1;
    if (tensor.checksums.size() != blocks) {
      return contradicts(which + " has " + std::to_string(tensor.checksums.size()) + " checksums for " +
                         std::to_string(blocks) + " blocks");
    }
    if (tensor.file >= manifest.files.size())
      return contradicts(which + " is in a file that it does not name");
    constexpr std::uint64_t end_max = std::uint64_t{1} << 63;
    if (tensor.offset.value() > end_max || tensor.length.value() > end_max - tensor.offset.value() ||
        tensor.length < tensor.size)
      return contradicts(which + " ends beyond every file");
    if (i > 0 && !(manifest.tensors[i - 1].key < tensor.key))
      return contradicts(which + " is not in order, or is there twice");
  }
  return ok();
}

}  // namespace

std::vector<std::byte> Manifest::encode() const {
  std::vector<std::byte> bytes(sizeof(Header));
  ByteWriter writer(bytes);
  writer(*this);
  Header header{.magic = magic,
                .version = format_version,
                .reserved = 0,
                .size = bytes.size() - sizeof(Header),
                .checksum = 0};
  header.checksum = checksum_of(header, std::span(bytes).subspan(sizeof header));
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

std::optional<ByteCount> Manifest::size_in(std::span<const std::byte> bytes) {
  Header header{};
  static_assert(sizeof header == header_bytes);
  if (bytes.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof header);
  constexpr std::uint64_t most = std::uint64_t{1} << 60;
  if (header.magic != magic || header.size > most) return std::nullopt;
  return ByteCount(sizeof header + header.size);
}

Error Manifest::too_short(const std::string& name, ByteCount wanted, ByteCount got) {
  return Error(ErrorCode::truncated, "Manifest::decode")
      .object(name)
      .wanted(wanted)
      .got(got)
      .advice("bring the whole file back; `penstock inspect` prints the commits that are whole");
}

Result<Manifest> Manifest::decode(const std::string& name, std::span<const std::byte> bytes) {
  const ByteCount size(bytes.size());
  Header header{};
  if (bytes.size() < sizeof header) return too_short(name, ByteCount(sizeof header), size);
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != magic) {
    return Error::invalid_argument("Manifest::decode")
        .object(name)
        .reason("it is no manifest of Penstock")
        .advice("name a durable directory or a checkpoint of Penstock");
  }
  if (header.size > bytes.size() - sizeof header)
    return too_short(name, ByteCount(sizeof header) + ByteCount(header.size), size);
  if (header.size < bytes.size() - sizeof header ||
      checksum_of(header, bytes.subspan(sizeof header)) != header.checksum)
    return damaged(name).reason("its checksum does not match");
  if (header.version != format_version) {
    return Error::unsupported("Manifest::decode")
        .object(name)
        .reason("another version of Penstock wrote it")
        .wanted("format " + std::to_string(format_version))
        .got("format " + std::to_string(header.version))
        .advice("continue the run with that version");
  }
  Manifest manifest;
  ByteReader reader(bytes.subspan(sizeof header));
  reader(manifest);
  if (!reader.ok()) return damaged(name).reason("its contents are not those of a manifest");
  PENSTOCK_TRY(check(name, manifest));
  return manifest;
}

}  // namespace zero
}  // namespace penstock
