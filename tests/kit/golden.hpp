#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace Json {
class Value;
}

namespace penstock::test {

/// The directory of the reference data that was generated with DeepSpeed and PyTorch.
[[nodiscard]] std::filesystem::path golden_directory();

/// Parses a JSON file of it. Aborts if it cannot be read, so that a missing reference does not pass a test.
[[nodiscard]] Json::Value golden_json(const std::string& name);

/// A safetensors file, whole in memory: 8 bytes of header length, a JSON header, the bytes.
/// https://github.com/huggingface/safetensors#format
class Safetensors {
 public:
  struct Array {
    std::string dtype;
    std::vector<std::uint64_t> shape;
    std::span<const std::byte> bytes;
  };

  explicit Safetensors(const std::filesystem::path& path);

  [[nodiscard]] bool contains(const std::string& name) const { return arrays_.contains(name); }
  [[nodiscard]] const Array& at(const std::string& name) const { return arrays_.at(name); }
  /// A copy of the elements; T has the size of the stored dtype.
  template <class T>
  [[nodiscard]] std::vector<T> elements(const std::string& name) const {
    std::vector<T> values(at(name).bytes.size() / sizeof(T));
    copy(name, values.data(), values.size() * sizeof(T));
    return values;
  }

 private:
  void copy(const std::string& name, void* to, std::size_t size) const;

  std::string file_;
  std::map<std::string, Array> arrays_;
};

}  // namespace penstock::test
