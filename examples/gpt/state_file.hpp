#pragma once

#include "gpt/model_description.hpp"

#include <penstock/base/result.hpp>
#include <penstock/cpu_adam/state_format.hpp>
#include <penstock/tiers/io/file_system.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

namespace gpt {

/// The states of a model's trained parameters, in fp32, in a safetensors file. A master is the tensor of its
/// parameter's path, "block.0.qkv.weight"; a moment has a suffix, ".first_moment". The file does not depend on how the
/// model is cut into units and shards. Any thread may read and write.
class StateFile {
 public:
  /// How far the training was.
  struct Progress {
    std::uint64_t steps = 0;    ///< of the trainer, which give the text and the learning rate
    std::uint64_t updates = 0;  ///< zero::Engine::completed_steps()
  };

  /// A file with room for the states, all zero, which is named "PATH.part" until finish().
  ///
  /// Errors: those of tiers::FileSystem::create(), such as no_space.
  [[nodiscard]] static penstock::Result<StateFile> create(const std::filesystem::path& path,
                                                          const ModelConfig& model);
  /// The finished file of a training of `model`.
  ///
  /// Errors: those of tiers::FileSystem::open(); invalid_argument, with the first difference, for a file of another
  /// model, or that this program has not written; truncated.
  [[nodiscard]] static penstock::Result<StateFile> open(const std::filesystem::path& path,
                                                        const ModelConfig& model);

  [[nodiscard]] const Progress& progress() const { return progress_; }
  /// Elements [first, first + values.size()) of a trained parameter of `model`, which may be a row block. Errors: those
  /// of tiers::File.
  penstock::Result<void> read(const ParameterDescription& parameter, penstock::cpu_adam::StateKind kind,
                              std::uint64_t first, std::span<float> values) const;
  penstock::Result<void> write(const ParameterDescription& parameter, penstock::cpu_adam::StateKind kind,
                               std::uint64_t first, std::span<const float> values);
  /// Makes the file durable and gives it its name, in place of an older file. Errors: those of tiers::FileSystem.
  penstock::Result<void> finish(const Progress& progress);

 private:
  StateFile(std::filesystem::path path, const ModelConfig& model);
  [[nodiscard]] std::filesystem::path unfinished() const { return path_.string() + ".part"; }
  [[nodiscard]] penstock::ByteCount header_size() const;
  [[nodiscard]] penstock::FileOffset place(const ParameterDescription& parameter,
                                           penstock::cpu_adam::StateKind kind, std::uint64_t first) const;
  /// Compares the header's list of tensors with that of the model.
  [[nodiscard]] penstock::Result<void> check(const std::string& got) const;

  std::filesystem::path path_;
  std::map<std::pair<std::string, penstock::cpu_adam::StateKind>, std::uint64_t>
      first_bytes_;      // after the header
  std::string tensors_;  // in the header, after the progress
  penstock::ByteCount data_;
  Progress progress_;
  std::unique_ptr<std::mutex> one_at_a_time_ = std::make_unique<std::mutex>();
  penstock::tiers::File file_;
};

}  // namespace gpt
