#pragma once

#include "swap/transfer/transfer_engine.hpp"
#include "zero/comm/hop_order.hpp"

#include <penstock/swap/runtime.hpp>
#include <penstock/tiers/device/device.hpp>
#include <penstock/zero/comm/communicator.hpp>

#include <memory>

namespace penstock::zero {

/// What the collective hops of one engine share. The streams belong to the mover.
struct CollectiveContext {
  swap::Runtime& runtime;
  tiers::Device& device;
  Communicator& communicator;
  HopOrder& order;
  tiers::Stream& copy_in;
  tiers::Stream& communication;
};

/// A hop of a collective's move: when it fails, the peers are told, and the hops behind it fail too.
class OrderedHop : public swap::Hop {
 public:
  OrderedHop(Communicator& communicator, HopOrder& order) : communicator_(communicator), order_(order) {}

  Result<void> start() override { return ok(); }
  /// Events of a stream wake nothing.
  bool wakes_the_mover() const override { return false; }
  Result<swap::HopState> poll() final;

 protected:
  /// Called until it returns `done` or an error.
  virtual Result<swap::HopState> advance() = 0;
  /// Whether the hop goes on although another one failed.
  [[nodiscard]] virtual bool past_failures() const { return false; }

  Communicator& communicator_;
  HopOrder& order_;
};

/// A hop that takes part in the collective order.
class CollectiveHop : public OrderedHop {
 public:
  explicit CollectiveHop(const CollectiveContext& context)
      : OrderedHop(context.communicator, context.order), context_(context), number_(context.order.append()) {}

 protected:
  [[nodiscard]] bool is_head() const { return order_.is_head(number_); }
  [[nodiscard]] bool past_failures() const override { return passed_; }
  /// Ends this hop's collective: the next one may start.
  void pop() {
    order_.pop();
    passed_ = true;
  }

  CollectiveContext context_;

 private:
  std::uint64_t number_;
  bool passed_ = false;
};

/// Where a shard is gathered to, and the events that say so.
struct GatherTarget {
  tiers::TensorId shard{};
  DeviceTensor slot;  ///< of `flat`: this rank's
  DeviceSpan flat;
  const tiers::Event* writable;  ///< past this, the range of `flat` may be written
  tiers::Event* copied;          ///< recorded behind the copy of the shard
  tiers::Event* gathered;        ///< recorded behind the all-gather
};
/// Host copy of the shard → slot of the gathered flat → all-gather in place. `ordered` once target.gathered can be
/// waited for, `done` once the shard's host copy is not read any more.
[[nodiscard]] std::unique_ptr<swap::Hop> make_gather_hop(const CollectiveContext& context,
                                                         const GatherTarget& target,
                                                         swap::PendingLease shard);

/// Once `written` has passed, the mean over ranks of this rank's slot; then records `reduced`.
[[nodiscard]] std::unique_ptr<swap::Hop> make_reduce_scatter_hop(const CollectiveContext& context,
                                                                 DeviceTensor flat,
                                                                 const tiers::Event& written,
                                                                 tiers::Event& reduced);

/// Exchanges a few bytes of host memory; both stay alive until it is done.
[[nodiscard]] std::unique_ptr<swap::Hop> make_exchange_hop(const CollectiveContext& context,
                                                           ConstHostSpan mine, HostSpan all);

}  // namespace penstock::zero
