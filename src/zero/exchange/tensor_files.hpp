#pragma once

#include "base/bounded_file.hpp"
#include "zero/exchange/checkpoint_files.hpp"

#include <penstock/base/result.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock::zero::exchange {

/// The tensors of one or more safetensors files, found by their names, as numbers in fp32. Reads what is asked for, and
/// holds the headers in memory. Used by one thread; every call may block.
class TensorFiles {
 public:
  /// `path` and `stem` as for read_checkpoint_headers().
  ///
  /// Errors: those of read_checkpoint_headers(); truncated, for a file that ends with its header.
  [[nodiscard]] static Result<TensorFiles> open(const std::filesystem::path& path, const std::string& stem);

  [[nodiscard]] bool contains(const std::string& name) const { return places_.contains(name); }
  /// Of all files, ascending.
  [[nodiscard]] std::vector<std::string> names() const;
  /// At least one.
  [[nodiscard]] std::span<const CheckpointFile> files() const { return files_; }

  /// Checks that there is a tensor `name` whose elements have an exact value in fp32 or may have one, F32, F16, BF16
  /// or F64, with this shape. An empty shape stands for any shape of `count` elements.
  ///
  /// Errors: not_found, with the nearest name; invalid_argument, with the file, for another type or shape.
  [[nodiscard]] Result<void> check(const std::string& name, ElementCount count,
                                   std::span<const std::uint64_t> shape) const;
  /// Elements [first, first + values.size()) of tensor `name`, which check() has passed.
  ///
  /// Errors: invalid_argument, with the element and the place in the file, for an F64 that is no fp32 number; truncated
  /// and io.
  Result<void> read(const std::string& name, std::uint64_t first, std::span<float> values);

 private:
  struct Place {
    std::size_t file = 0;
    std::size_t tensor = 0;
  };
  TensorFiles() = default;
  [[nodiscard]] const TensorEntry& entry(const Place& place) const {
    return files_[place.file].header.tensors[place.tensor];
  }

  std::vector<CheckpointFile> files_;
  std::map<std::string, Place> places_;
  std::optional<BoundedFile> open_file_;
  std::size_t open_number_ = 0;
  std::vector<double> piece_;  // of a tensor of another type; aligned for each
};

}  // namespace penstock::zero::exchange
