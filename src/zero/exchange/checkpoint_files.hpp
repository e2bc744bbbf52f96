#pragma once

#include "zero/exchange/safetensors_header.hpp"

namespace penstock::zero::exchange {

struct CheckpointFile {
  std::filesystem::path path;
  SafetensorsHeader header;
};

/// Reads the headers of a model's safetensors files: of one file; of those that an index of Hugging Face names
/// (model.safetensors.index.json), which are beside it; or of the index or the file in a directory, where their names
/// begin with `stem`.
///
/// Errors: those of SafetensorsHeader::read() for each file; not_found, if files of an index are missing, since the
/// index has no shapes, or if a directory has neither; invalid_config, for an index that cannot be used;
/// invalid_argument, if a file lacks a tensor of the index, or two files have one.
[[nodiscard]] Result<std::vector<CheckpointFile>> read_checkpoint_headers(const std::filesystem::path& path,
                                                                          const std::string& stem);

/// Whether the name is that of a safetensors file, of an index of such files, or of a directory.
[[nodiscard]] bool is_checkpoint(const std::filesystem::path& path);

}  // namespace penstock::zero::exchange
