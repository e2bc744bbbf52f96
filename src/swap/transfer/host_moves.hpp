#pragma once

#include "swap/residency/host_residency.hpp"
#include "swap/timeline.hpp"
#include "swap/transfer/transfer_engine.hpp"
#include "tiers/store/tensor_store.hpp"

#include <penstock/base/executor.hpp>
#include <penstock/base/span.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory_resource>
#include <vector>

namespace penstock::swap {

/// Carries out the decisions of HostResidency as moves: a load is a disk read, then verification on a worker; a store
/// is the computation of checksums on a worker, then a disk write. Reports each result to HostResidency.
///
/// Used with the runtime's lock held, also by the events of its moves.
class HostMoves final : public HostResidency::Effects {
 public:
  struct Options {
    HostSpan arena;                ///< the memory that the host budget allocates from
    Executor* executor = nullptr;  ///< runs checksums
    std::function<void()> wake;    ///< called when executor work has finished
    Timeline* timeline = nullptr;  ///< gets each load and store, unless it is null
  };
  /// `store` and `transfers` outlive it.
  HostMoves(tiers::TensorStore& store, TransferEngine& transfers, Options options)
      : store_(store), transfers_(transfers), options_(std::move(options)) {}
  /// Before the first move.
  void report_to(HostResidency& residency) { residency_ = &residency; }

  void load(tiers::TensorId tensor, bool verify, bool urgent) override;
  void store(tiers::TensorId tensor, const tiers::Extent& place) override;
  void hasten(tiers::TensorId tensor) override;
  void drop(tiers::TensorId) override {}

  /// Appends the moves to start to `moves`, in order.
  void take_moves(std::vector<Move>& moves);

  /// The payload of a tensor that has a host range, or a copy outside the arena.
  [[nodiscard]] HostSpan payload(tiers::TensorId tensor) const;
  /// The error for a block that does not verify. Safe from a worker: descriptions are not moved or changed.
  [[nodiscard]] Error corrupted(const tiers::TensorDescription& description, std::size_t block) const;

 private:
  /// The load or store of a tensor.
  struct Transfer {
    std::uint32_t path;
    std::atomic<bool> urgent;  // read by the driver of the path
    TimePoint begun;           // only with a timeline
  };
  void start(Move move);
  [[nodiscard]] const Transfer& begin(tiers::TensorId tensor, const tiers::Extent& extent, bool urgent);
  void end(tiers::TensorId tensor, const char* what);

  tiers::TensorStore& store_;
  TransferEngine& transfers_;
  Options options_;
  HostResidency* residency_ = nullptr;
  std::vector<Move> moves_;
  std::pmr::unsynchronized_pool_resource nodes_;
  std::pmr::map<tiers::TensorId, Transfer> in_flight_{&nodes_};  // a tensor has one at a time
};

}  // namespace penstock::swap
