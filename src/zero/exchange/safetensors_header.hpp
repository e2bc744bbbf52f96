#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/units.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::zero::exchange {

/// One tensor of a safetensors file.
struct TensorEntry {
  std::string name;
  std::string dtype;  ///< as in the file: "BF16"
  std::vector<std::uint64_t> shape;
  ElementCount count;              ///< the product of `shape`
  ByteCount begin, end;            ///< of its bytes, from the end of the header
  bool is_floating_point = false;  ///< of 8 bits or more; others are packed weights, masks or positions
};

/// The header of a safetensors file: 8 bytes that are its length, little-endian, and then JSON.
/// Source: https://huggingface.co/docs/safetensors, section "Format".
struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;             ///< in the order of their bytes
  std::map<std::string, std::string> metadata;  ///< __metadata__
  ByteCount data;                               ///< of all tensors
  bool has_data = false;  ///< the file has their bytes too, and does not end with the header
  FileOffset begin;       ///< of the tensors in the file, from read()

  /// The format's own limit.
  static constexpr ByteCount length_max{100'000'000};

  /// Reads the length from the first 8 bytes of a file of `file` bytes.
  ///
  /// Errors: truncated, for fewer bytes than the length says; invalid_argument, for 0 or more than length_max, as in a
  /// file of another format.
  [[nodiscard]] static Result<ByteCount> length_of(std::string_view first_bytes, ByteCount file,
                                                   const std::string& name);

  /// Parses the JSON. `data` bytes follow it in the file; none: the file ends with the header, which is enough.
  ///
  /// Errors: invalid_argument, with the tensor and the byte of the file: no JSON, an unknown dtype, a shape of more
  /// elements than fit into 64 bits, offsets that are not those of the shape, that overlap or leave a hole, a name
  /// twice, no tensor, metadata that is not text; truncated, if the data is shorter.
  [[nodiscard]] static Result<SafetensorsHeader> parse(std::string_view json, ByteCount data,
                                                       const std::string& name);

  /// Reads the header of a file, never its data. Errors: as above, and those of the system.
  [[nodiscard]] static Result<SafetensorsHeader> read(const std::filesystem::path& file);
};

}  // namespace penstock::zero::exchange
