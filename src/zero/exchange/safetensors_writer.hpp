#pragma once

#include <penstock/base/dtype.hpp>
#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/tiers/io/file_system.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::zero::exchange {

/// The name of a dtype in a safetensors file: "BF16".
[[nodiscard]] std::string_view safetensors_name(DType dtype);

/// A tensor that is to be written.
struct TensorToWrite {
  std::string name;
  DType dtype = DType::fp32;
  std::vector<std::uint64_t> shape;
  ElementCount count;  ///< the product of `shape`, above 0
};

/// Writes tensors into safetensors files of a directory, as Hugging Face lays them out: `model.safetensors`, or
/// `model-00001-of-00003.safetensors` and so on with `model.safetensors.index.json`. The files have temporary names
/// until finish(): who sees the index, or the single file, sees all tensors, after a power cut too. The destructor
/// removes the files, unless keep() was called.
///
/// Parts of tensors may be written in any order. A file is open from its first part to its last one. Memory: the
/// headers. Used by one thread. Every call may block.
class SafetensorsWriter {
 public:
  struct Options {
    tiers::FileSystem* files = &tiers::real_file_system();  ///< outlives the object
    std::filesystem::path directory;                        ///< exists
    std::string stem = "model";
    ByteCount shard_max;  ///< of the tensors in a file, unless a single tensor is larger
    std::map<std::string, std::string> metadata = {};  ///< of each file
  };

  /// Divides the tensors among files, in their order. Creates no file. `tensors` has no name twice.
  ///
  /// Errors: invalid_argument, for a shard_max of 0, no tensors, and for tensors whose header or number of bytes the
  /// format does not allow.
  [[nodiscard]] static Result<SafetensorsWriter> create(Options options, std::vector<TensorToWrite> tensors);
  SafetensorsWriter(SafetensorsWriter&& other) noexcept = default;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;
  ~SafetensorsWriter();

  /// Writes elements of tensor number `tensor` from `first` on. Each element is written once.
  ///
  /// Errors: no_space, io, already_exists, with the file.
  Result<void> write(std::size_t tensor, std::uint64_t first, ConstHostSpan bytes);
  /// Gives the files their names, durably; the index last. Every element has been written.
  ///
  /// Errors: no_space, io, with the file.
  Result<void> finish();
  /// From now on the files stay.
  void keep() { created_.clear(); }

  /// The names of all files in the directory, the index last.
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] std::size_t count() const { return tensors_.size(); }
  [[nodiscard]] ByteCount size() const { return size_; }  ///< of all tensors

 private:
  struct Place {
    std::size_t shard = 0;
    ByteCount begin;  ///< after the header
  };
  struct Shard {
    std::size_t first = 0, end = 0;  ///< its tensors
    ByteCount size, unwritten;       ///< of its tensors
    std::string header;              ///< with its length
    tiers::File file;                ///< open while it is written
  };

  explicit SafetensorsWriter(Options options) : options_(std::move(options)) {}
  void divide();
  [[nodiscard]] Result<std::string> header_of(const Shard& shard) const;
  [[nodiscard]] bool has_index() const { return shards_.size() > 1; }
  [[nodiscard]] std::string shard_name(std::size_t shard) const;
  [[nodiscard]] std::string index_name() const;
  [[nodiscard]] std::string index_text() const;
  [[nodiscard]] std::filesystem::path temporary(const std::string& name) const;
  Result<tiers::File> create_file(const std::string& name, ByteCount size);
  Result<void> publish(const std::string& name);

  Options options_;
  std::vector<TensorToWrite> tensors_;
  std::vector<Place> places_;  ///< by tensor
  std::vector<Shard> shards_;
  ByteCount size_;
  std::vector<std::filesystem::path> created_;  ///< that the destructor removes
};

}  // namespace penstock::zero::exchange
