#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::test {

/// A tensor of a file that a test writes.
struct FileTensor {
  std::string name;
  std::vector<std::uint64_t> shape;
  std::string dtype = "BF16";

  [[nodiscard]] std::uint64_t bytes() const {
    const bool is_64 = dtype.ends_with("64"), is_32 = dtype.ends_with("32"), is_16 = dtype.ends_with("16");
    std::uint64_t count = is_64 ? 8 : is_32 ? 4 : is_16 ? 2 : 1;
    for (const std::uint64_t length : shape) count *= length;
    return count;
  }
};

/// The JSON of a safetensors header.
inline std::string safetensors_json(const std::vector<FileTensor>& tensors) {
  std::string json = R"({"__metadata__":{"format":"pt"})";
  std::uint64_t begin = 0;
  for (const FileTensor& tensor : tensors) {
    json.append(",\"")
        .append(tensor.name)
        .append("\":{\"dtype\":\"")
        .append(tensor.dtype)
        .append("\",\"shape\":[");
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      json.append(i > 0 ? "," : "").append(std::to_string(tensor.shape[i]));
    }
    const std::uint64_t end = begin + tensor.bytes();
    json.append("],\"data_offsets\":[").append(std::to_string(begin)).append(",").append(std::to_string(end));
    json.append("]}");
    begin = end;
  }
  return json + "}";
}

/// The 8 bytes of the length, and the header.
inline std::string with_length(const std::string& json) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(static_cast<std::uint64_t>(json.size()) >> (8 * i));
  return bytes + json;
}

/// A file that ends with its header.
inline std::string safetensors_bytes(const std::vector<FileTensor>& tensors) {
  return with_length(safetensors_json(tensors));
}

inline std::filesystem::path write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

/// The tensors of a GPT-2 of `layers` layers of width 8, as in Hugging Face's file: the head's matrix is the
/// embedding's, and each layer has a mask.
inline std::vector<FileTensor> small_gpt2(std::uint64_t layers) {
  std::vector<FileTensor> tensors;
  for (std::uint64_t layer = 0; layer < layers; ++layer) {
    std::string prefix = "h.";
    prefix.append(std::to_string(layer)).append(".");
    tensors.push_back({prefix + "attn.bias", {1, 1, 16, 16}, "F32"});
    tensors.push_back({prefix + "attn.c_attn.weight", {8, 24}, "F32"});
    tensors.push_back({prefix + "attn.c_attn.bias", {24}, "F32"});
    tensors.push_back({prefix + "ln_1.weight", {8}, "F32"});
  }
  tensors.push_back({"ln_f.weight", {8}, "F32"});
  tensors.push_back({"wpe.weight", {16, 8}, "F32"});
  tensors.push_back({"wte.weight", {100, 8}, "F32"});
  return tensors;
}

}  // namespace penstock::test
