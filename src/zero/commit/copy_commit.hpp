#pragma once

#include "zero/commit/manifest.hpp"

#include <penstock/base/result.hpp>
#include <penstock/tiers/io/file_system.hpp>

#include <filesystem>

namespace penstock::zero {

/// The tensors of a manifest in one file.
struct CopiedCommit {
  Manifest manifest;  ///< of the copy
  ByteCount cloned;   ///< bytes that share storage with the original
  ByteCount written;
};

/// Copies the tensors of `manifest` to `name`, durably, and replaces a file of that name: by reflink where the file
/// system has it, else by verified reads and writes through 4 buffers of 32 blocks each. Nothing overwrites the tensors
/// meanwhile. After an error there is no file. Blocks.
///
/// Errors: no_space, before anything is written if the file system can reserve space; corrupted, with the file and the
/// offset; io.
[[nodiscard]] Result<CopiedCommit> copy_commit(tiers::FileSystem& files, const Manifest& manifest,
                                               const std::filesystem::path& name);

}  // namespace penstock::zero
