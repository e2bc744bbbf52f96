#pragma once

#include "zero/commit/manifest.hpp"

#include <penstock/base/dtype.hpp>
#include <penstock/base/result.hpp>
#include <penstock/tiers/io/file_system.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace penstock::zero::exchange {

struct ExportOptions {
  tiers::FileSystem* files = &tiers::real_file_system();  ///< outlives the call
  /// Made if it does not exist; empty if it does.
  std::filesystem::path directory;
  std::optional<DType> dtype = {};  ///< of the weights; default: that of the run's parameters
  ByteCount shard_max{5'000'000'000};
  bool states = false;  ///< masters and moments too, in files of their own
  /// Called with the bytes written so far.
  std::function<void(ByteCount)> progress = {};
};

struct ExportReport {
  DType dtype = DType::fp32;
  std::uint64_t tensors = 0;
  ByteCount bytes;                 ///< of the tensors
  std::vector<std::string> files;  ///< names in the directory
};

/// The bytes of the tensors that an export of this commit writes.
[[nodiscard]] ByteCount export_size(const Manifest& manifest, const ExportOptions& options);

/// Writes the weights of a commit as safetensors, `model…`, and with its states `states…`, whose metadata has a
/// StatesDescription. `manifests` are those of all ranks. A weight is the master, rounded to the nearest value of its
/// type, ties to even, as in the run; shared parameters are written once, under their owner's name. Memory: about 40
/// MiB. Blocks.
///
/// Errors: already_exists, for a directory that is not empty; non_finite, naming the element, for a number that the
/// type does not hold; those of CommittedStates, of SafetensorsWriter and of the file system. The directory is as
/// empty as before then.
[[nodiscard]] Result<ExportReport> export_commit(const std::vector<Manifest>& manifests,
                                                 const ExportOptions& options);

}  // namespace penstock::zero::exchange
