#pragma once

#include "swap/stream_tracks.hpp"
#include "swap/transfer/transfer_engine.hpp"
#include "tiers/device/event_pool.hpp"
#include "tiers/device/stream_progress.hpp"
#include "zero/comm/collective_trace.hpp"
#include "zero/comm/hop_order.hpp"

#include <penstock/swap/runtime.hpp>
#include <penstock/tiers/device/device.hpp>
#include <penstock/zero/comm/communicator.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::zero {

/// The objects that the collective hops of one engine share. The streams are used by the mover.
struct CollectiveContext {
  swap::Runtime& runtime;
  tiers::Device& device;
  Communicator& communicator;
  HopOrder& order;
  CollectiveTrace& trace;
  tiers::Stream& copy_in;
  tiers::Stream& communication;
  tiers::EventPool& events;
  tiers::StreamProgress& copied_in;  ///< of copy_in; used by the mover
  swap::StreamTracks* tracks;        ///< null: what the streams do is not written
  Reduction reduction = Reduction::exact;
};

/// A hop of a move with a collective. When it fails, the hops after it in the order fail too, and it aborts the
/// communicator unless a rank has interrupted the collectives.
class OrderedHop : public swap::Hop {
 public:
  OrderedHop(Communicator& communicator, HopOrder& order) : communicator_(communicator), order_(order) {}

  Result<void> start() override { return ok(); }
  Result<swap::HopState> poll() final;

 protected:
  /// Called repeatedly until it returns `done` or an error.
  virtual Result<swap::HopState> advance() = 0;
  /// Whether the hop continues although another hop has failed.
  [[nodiscard]] virtual bool continues_after_failure() const { return false; }
  /// The flats of the hop's collective, for messages; empty if it has none.
  [[nodiscard]] virtual std::string flats() const { return {}; }
  /// Whether a stream still uses the hop's leases. A hop that has failed keeps them until then.
  [[nodiscard]] virtual bool copies_in_flight() const { return false; }

  Communicator& communicator_;
  HopOrder& order_;

 private:
  std::optional<Error> error_;
};

/// A hop whose collective has a place in the collective order.
class CollectiveHop : public OrderedHop {
 public:
  explicit CollectiveHop(const CollectiveContext& context)
      : OrderedHop(context.communicator, context.order), context_(context), number_(context.order.append()) {}
  CollectiveHop(const CollectiveContext& context, Transfer::Kind kind, const CollectiveSignature& signature)
      : CollectiveHop(context) {
    context.trace.add(kind, signature);
  }

 protected:
  [[nodiscard]] bool is_head() const { return order_.is_head(number_); }
  [[nodiscard]] bool continues_after_failure() const override { return completed_; }
  /// Call when this hop's collective is complete: the next one may start.
  void pop() {
    order_.pop();
    completed_ = true;
  }

  /// Around what the collective does on its stream, for the timeline. That of a rank that is alone does nothing there.
  /// `names`: of its flats.
  void begin_on_stream(const char* what, const std::string& names) {
    if (is_tracked()) context_.tracks->begin(context_.communication.handle(), what + names);
  }
  void end_on_stream(const char* what, const std::string& names, ByteCount bytes) {
    if (is_tracked()) context_.tracks->end(context_.communication.handle(), what + names, bytes);
  }

  CollectiveContext context_;

 private:
  [[nodiscard]] bool is_tracked() const { return context_.tracks != nullptr && communicator_.size() > 1; }

  std::uint64_t number_;
  bool completed_ = false;
};

/// The destination of a gathered shard and the events of the gather.
struct GatherTarget {
  std::string name;       ///< of the flat, for messages
  DeviceSpan kept_shard;  ///< the shard, if it is kept on the device
  CollectiveSignature signature;
  DeviceTensor slot;  ///< this rank's slot of `flat`
  DeviceSpan flat;
  std::vector<tiers::Fence> writable;          ///< after these the range of `flat` may be written
  const std::atomic<bool>* updated = nullptr;  ///< whether the shard has its new values
  tiers::Event* gathered;                      ///< recorded after the all-gather
};
/// Once the shard is updated, requests `shard`, whose lease was announced or is to be requested, and copies it from
/// host memory to its slot of the flat, or copies target.kept_shard; then all-gathers in place. The hop's state is
/// `ordered` once streams can wait for target.gathered, and `done` once the shard's host copy is not read any more.
[[nodiscard]] std::unique_ptr<swap::Hop> make_gather_hop(const CollectiveContext& context,
                                                         GatherTarget target, swap::PendingLease shard);

/// Full gradients that one collective reduces. A move of each of them has a hop that waits for it.
struct GradientBucket {
  std::vector<DeviceTensor> flats;
  std::vector<const tiers::Event*> written;  ///< of each, before the collective
  std::vector<tiers::Event*> reduced;        ///< of each, recorded after it
  std::string names;                         ///< of the flats, for messages
  CollectiveSignature signature;             ///< of the first, with the others
  bool started = false, done = false;        ///< set and read by the mover
};
/// Reduces this rank's slots to the mean over ranks. For the first flat of the bucket.
[[nodiscard]] std::unique_ptr<swap::Hop> make_reduce_scatter_hop(const CollectiveContext& context,
                                                                 std::shared_ptr<GradientBucket> bucket);
/// Waits for the hop of the bucket's first flat. For each of the others.
[[nodiscard]] std::unique_ptr<swap::Hop> make_reduced_together_hop(
    const CollectiveContext& context, std::shared_ptr<const GradientBucket> bucket);

/// Exchanges a few bytes of host memory. Both spans must stay alive until the hop is done.
[[nodiscard]] std::unique_ptr<swap::Hop> make_exchange_hop(const CollectiveContext& context,
                                                           ConstHostSpan mine, HostSpan all,
                                                           const CollectiveSignature& signature);

/// Recovers the communicator after an interrupt; see Communicator::start_recovery().
[[nodiscard]] std::unique_ptr<swap::Hop> make_recovery_hop(const CollectiveContext& context);

}  // namespace penstock::zero
