#pragma once

#include "zero/commit/committed_blocks.hpp"
#include "zero/commit/manifest.hpp"
#include "zero/layout/shard_layout.hpp"

#include <penstock/base/result.hpp>
#include <penstock/cpu_adam/optimizer_tile.hpp>
#include <penstock/tiers/io/file_system.hpp>

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero {

/// Reads what the ranks of a run have committed, for a run that may have another number of ranks, division into units,
/// tiers or state format. Parameters are identified by their order in the model, their name and their size.
///
/// Every block that is read is verified. Used by one thread; read() blocks.
class CommittedStates {
 public:
  /// The manifest of the generation on another rank.
  using LoadManifest = std::function<Result<Manifest>(std::uint32_t rank)>;

  /// `manifest`: of any rank. `files` outlives the object, and calls of it that do not return within `deadline`.
  ///
  /// Errors: invalid_argument, naming what differs: another model, or another optimizer.
  [[nodiscard]] static Result<CommittedStates> open(tiers::FileSystem& files, Manifest manifest,
                                                    LoadManifest load, const ModelLayout& model,
                                                    cpu_adam::Optimizer optimizer, TimePoint deadline);

  /// What differs and changes no value, one line each: shapes of parameters.
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }

  /// Values [first, first + values.size()) of one state of `parameter`, which is in the model of open().
  ///
  /// Errors: corrupted, truncated and io, with the file and the offset; deadline_exceeded; invalid_argument, for a
  /// moment of a parameter that was frozen; those of LoadManifest.
  Result<void> read(ParameterId parameter, cpu_adam::StateKind kind, std::uint64_t first,
                    std::span<float> values);

 private:
  /// The tensors of one flat of one rank, in the order of their elements.
  struct FlatTensors {
    std::vector<const CommittedTensor*> tiles;
    std::vector<const CommittedTensor*> shards;
  };
  struct RankTensors {
    Manifest manifest;
    std::map<std::pair<std::uint32_t, std::uint32_t>, FlatTensors> flats;  // by unit and group
    std::map<std::uint32_t, std::shared_ptr<tiers::File>> files;
  };
  /// Blocks of a tensor that were read and verified.
  struct Window {
    const CommittedTensor* tensor = nullptr;
    ByteCount begin;
    PageBuffer memory;
    HostSpan bytes;
  };

  CommittedStates(tiers::FileSystem& files, Manifest manifest, LoadManifest load, TimePoint deadline);
  [[nodiscard]] Result<RankTensors*> rank(std::uint32_t number);
  [[nodiscard]] Result<const CommittedTensor*> find(const RankTensors& from, const FlatLayout& flat,
                                                    tiers::Purpose contents, std::uint64_t element) const;
  /// The bytes of `tensor` from `begin` to the end of the window that contains it.
  [[nodiscard]] Result<HostSpan> bytes_from(RankTensors& from, const CommittedTensor& tensor,
                                            ByteCount begin);
  [[nodiscard]] Result<Window> load(RankTensors& from, const CommittedTensor& tensor, ByteCount begin,
                                    PageBuffer memory);
  Result<void> copy_parameters(RankTensors& from, const FlatLayout& flat, const CommittedTensor& tile,
                               std::uint64_t first, HostSpan to);
  /// Read the first values, those of one window, and remove them from `values`.
  Result<void> read_tile(RankTensors& from, const FlatLayout& flat, std::uint64_t position,
                         cpu_adam::StateKind kind, std::span<float>& values);
  Result<void> read_frozen(RankTensors& from, const FlatLayout& flat, std::uint64_t position,
                           std::span<float>& values);

  tiers::FileSystem& files_;
  LoadManifest load_;
  TimePoint deadline_;
  ModelLayout model_;  // that was committed
  ShardLayout shards_;
  DType dtype_;
  cpu_adam::StateFormat format_;
  cpu_adam::Optimizer optimizer_;
  std::vector<std::string> notes_;
  std::vector<ParameterId> in_order_;  // the committed parameters
  std::vector<std::uint32_t>
      first_of_unit_;  // of the model of open(): the number of the unit's first parameter
  std::map<std::uint32_t, RankTensors> ranks_;
  std::list<Window> windows_;  // the last one used first
};

}  // namespace penstock::zero
