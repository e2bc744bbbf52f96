#include <penstock/zero/comm/in_process_group.hpp>

#include "tiers/io/running_time.hpp"
#include "zero/comm/collective_errors.hpp"
#include "zero/comm/transfer_header.hpp"
#include "zero/comm/transport.hpp"
#include "zero/comm/transport_communicator.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace penstock::zero {

namespace {

Error left() {
  return Error(ErrorCode::peer_failed, "Communicator").reason("the rank has left");
}

/// A rank's part in its latest transfer. An event is recorded again only after every peer has enqueued its wait for the
/// last record. `done` is recorded after all accesses of the rank's stream to memory of its peers.
struct RankSlot {
  std::uint64_t posted = 0, moved = 0, completed = 0;  // transfers that reached each stage
  bool reading = false;                                // between readable and release_slices()
  bool recovering = false, recovered = false;          // recovered: its stream waits for its peers' accesses
  Transfer transfer;
  tiers::Device* device = nullptr;  // valid while the group has not failed
  std::unique_ptr<tiers::Event> ready, done;

  /// Separate from the group's mutex, because a wake function takes other locks.
  std::mutex wake_mutex;
  std::function<void()> wake;
};

class Group final : public InProcessGroup, public std::enable_shared_from_this<Group> {
 public:
  Group(std::uint32_t ranks, const InProcessGroupOptions& wanted) : options(wanted), slots(ranks) {}
  Result<std::unique_ptr<Communicator>> join(std::uint32_t rank, tiers::Device& device,
                                             Compute& compute) override;
  void abort(std::uint32_t rank, const Error& error) noexcept override {
    {
      const std::lock_guard lock(mutex);
      abort_locked(rank, error);
    }
    wake_peers(rank);
  }
  [[nodiscard]] bool has_joined(std::uint32_t rank) {
    const std::lock_guard lock(mutex);
    return rank < slots.size() && slots[rank].ready;
  }
  void abort_locked(std::uint32_t rank, const Error& error) noexcept {
    if (failure) return;
    failure = Error(ErrorCode::peer_failed, "Communicator")
                  .reason("rank " + std::to_string(rank) + " failed")
                  .note("cause   " + error.message());
  }
  void interrupt(std::uint32_t rank, const Error& cause) noexcept {
    {
      const std::lock_guard lock(mutex);
      if (failure || interruption) return;
      interruption = Error(ErrorCode::interrupted, "Communicator")
                         .reason("rank " + std::to_string(rank) + " interrupted the collectives")
                         .note("cause   " + cause.message());
    }
    wake_peers(rank);
  }
  /// The reason why no collective can proceed, if there is one.
  [[nodiscard]] const std::optional<Error>& obstacle() const { return failure ? failure : interruption; }
  [[nodiscard]] bool all(bool RankSlot::*flag) const {
    return std::all_of(slots.begin(), slots.end(), [flag](const RankSlot& slot) { return slot.*flag; });
  }
  /// Every rank's stream waits for its peers: the group is as it was created.
  void end_recovery() {
    for (RankSlot& slot : slots) {
      slot.posted = slot.moved = slot.completed = 0;
      slot.recovering = slot.recovered = false;
      slot.transfer = {};
    }
    interruption.reset();
  }
  /// Call without holding the group's mutex.
  void wake_peers(std::uint32_t rank) noexcept {
    for (std::uint32_t peer = 0; peer < slots.size(); ++peer) {
      if (peer == rank) continue;
      const std::lock_guard lock(slots[peer].wake_mutex);
      if (slots[peer].wake) slots[peer].wake();
    }
  }

  const InProcessGroupOptions options;
  std::mutex mutex;  // guards the following members except the wake functions
  std::vector<RankSlot> slots;
  std::optional<Error> failure, interruption;
  std::condition_variable slices_released;
};

/// Copies bytes from the memory of its peers.
class InProcessTransport final : public Transport {
 public:
  InProcessTransport(std::shared_ptr<Group> group, std::uint32_t rank, tiers::Device& device)
      : group_(std::move(group)), rank_(rank), device_(device), mine_(group_->slots[rank]) {}
  ~InProcessTransport() override {
    InProcessTransport::set_wake({});
    group_->abort(rank_, left());
  }

  std::uint32_t rank() const override { return rank_; }
  std::uint32_t size() const override { return static_cast<std::uint32_t>(group_->slots.size()); }

  void set_wake(std::function<void()> wake) override {
    const std::lock_guard lock(mine_.wake_mutex);
    mine_.wake = std::move(wake);
  }

  Result<void> start(const Transfer& transfer) override {
    {
      const std::lock_guard lock(group_->mutex);
      if (group_->obstacle()) return *group_->obstacle();
      if (mine_.completed != mine_.posted) return out_of_order("the previous collective has not completed");
      mine_.transfer = transfer;
      if (transfer.stream != nullptr) PENSTOCK_TRY(transfer.stream->record(*mine_.ready));
      ++mine_.posted;
      begin_wait();
    }
    group_->wake_peers(rank_);
    return ok();
  }

  Result<TransferState> poll() override {
    bool advanced = false;
    auto state = poll_locked(advanced);
    if (!state || advanced) group_->wake_peers(rank_);
    return state;
  }

  TimePoint poll_interval() const override { return long_interval; }  // the peers wake this rank

  DeviceTensor slice(std::size_t f, std::uint32_t r) const override { return slot(r, f, rank_); }

  Result<void> release_slices() override {
    {
      const std::lock_guard lock(group_->mutex);
      mine_.reading = false;
      group_->slices_released.notify_all();
      PENSTOCK_TRY(mine_.transfer.stream->record(*mine_.done));
      mine_.moved = mine_.posted;
    }
    group_->wake_peers(rank_);
    return ok();
  }

  void abort(const Error& error) noexcept override { group_->abort(rank_, error); }
  void interrupt(const Error& cause) noexcept override { group_->interrupt(rank_, cause); }

  Result<void> start_recovery(tiers::Stream& stream) override {
    {
      const std::lock_guard lock(group_->mutex);
      if (group_->failure) return *group_->failure;
      if (!group_->interruption || mine_.recovering) {
        return out_of_order(mine_.recovering ? "the recovery has started already"
                                             : "the group is not interrupted");
      }
      mine_.recovering = true;
      begin_wait();
      mine_.transfer.stream = &stream;
    }
    group_->wake_peers(rank_);
    return ok();
  }

  void retire(tiers::Stream& stream) noexcept override {
    set_wake({});
    {
      std::unique_lock lock(group_->mutex);
      group_->abort_locked(rank_, left());
      // A peer enqueues its sum without the mutex, which takes no longer than one poll.
      group_->slices_released.wait(lock, [this] { return no_peer_reads(); });
      // From here on no peer starts to read. Peers that have moved data in this rank's last transfer finish with their
      // event `done`; if that transfer succeeded, this rank's stream waits for it already.
      for (const RankSlot& peer : group_->slots) {
        if (&peer == &mine_ || peer.moved < mine_.posted || mine_.posted == 0) continue;
        (void)stream.wait(*peer.done);  // if the wait fails, the stream has failed and runs nothing more
      }
    }
    group_->wake_peers(rank_);
  }

 private:
  static Error out_of_order(const char* reason) {
    return Error(ErrorCode::failed_state, "Communicator").reason(reason);
  }

  void begin_wait() {
    const auto& [deadline, clock] = group_->options;
    running_.emplace(*clock, tiers::running_time_step(deadline));
    end_of_wait_ = running_->end_of(deadline);
  }

  /// pending until the deadline of this collective; then the group fails, because ranks are missing.
  template <class Arrived>
  Result<TransferState> wait(std::string what, const Arrived& has_arrived) {
    (void)running_->update();
    if (running_->elapsed() < end_of_wait_) return TransferState::pending;
    std::string missing;
    for (std::uint32_t rank = 0; rank < size(); ++rank) {
      const RankSlot& peer = group_->slots[rank];
      if (has_arrived(peer)) continue;
      missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(rank);
      if (!peer.ready) missing += " (has not joined the group)";
    }
    group_->failure = ranks_missing(std::move(what), missing, group_->options.deadline);
    return *group_->failure;
  }

  Result<TransferState> poll_locked(bool& advanced) {
    const std::lock_guard lock(group_->mutex);
    if (mine_.recovering) return poll_recovery(advanced);
    if (mine_.moved < mine_.posted) {
      // The memory of a rank that failed may be freed already.
      if (group_->obstacle()) return *group_->obstacle();
      if (!all_reached(&RankSlot::posted)) return wait_for(&RankSlot::posted);
      PENSTOCK_TRY(check_equal());
      auto moved = move();
      if (moved && mine_.transfer.kind == Transfer::Kind::all_to_all) {
        mine_.reading = true;
        return TransferState::readable;
      }
      mine_.moved = mine_.posted;
      advanced = true;
      if (!moved) {
        group_->abort_locked(rank_, moved.error());
        return moved.error();
      }
    }
    // A rank that leaves after the last transfer does not make it fail.
    if (!all_reached(&RankSlot::moved)) {
      if (group_->obstacle()) return *group_->obstacle();
      return wait_for(&RankSlot::moved);
    }
    if (mine_.transfer.stream != nullptr && mine_.completed < mine_.posted) {
      // This rank's slots may be written again only after the peers' copies from them.
      for (const RankSlot& peer : group_->slots) {
        if (&peer != &mine_) PENSTOCK_TRY(mine_.transfer.stream->wait(*peer.done));
      }
    }
    mine_.completed = mine_.posted;
    return TransferState::complete;
  }

  Result<TransferState> wait_for(std::uint64_t RankSlot::*stage) {
    const Transfer& mine = mine_.transfer;
    return wait(std::string(to_string(mine.kind)) + " of " + to_string(mine.signature),
                [this, stage](const RankSlot& one) { return one.*stage >= mine_.posted; });
  }
  Result<TransferState> wait_for(bool RankSlot::*stage) {
    return wait("recovery", [stage](const RankSlot& one) { return one.*stage; });
  }

  /// First every rank has stopped its collectives, then every rank's stream waits for the accesses of its peers.
  Result<TransferState> poll_recovery(bool& advanced) {
    if (group_->failure) return *group_->failure;
    if (!mine_.recovered) {
      if (!group_->all(&RankSlot::recovering)) return wait_for(&RankSlot::recovering);
      for (const RankSlot& peer : group_->slots) {
        if (&peer != &mine_) PENSTOCK_TRY(mine_.transfer.stream->wait(*peer.done));
      }
      mine_.recovered = advanced = true;
    }
    if (!group_->all(&RankSlot::recovered)) return wait_for(&RankSlot::recovered);
    group_->end_recovery();
    return TransferState::complete;
  }

  bool no_peer_reads() const {
    for (const RankSlot& peer : group_->slots) {
      if (&peer != &mine_ && peer.reading) return false;
    }
    return true;
  }

  bool all_reached(std::uint64_t RankSlot::*stage) const {
    for (const RankSlot& one : group_->slots) {
      if (one.*stage < mine_.posted) return false;
    }
    return true;
  }

  Result<void> check_equal() const {
    const TransferHeader mine = TransferHeader::of(mine_.transfer);
    for (std::uint32_t peer = 0; peer < size(); ++peer) {
      const TransferHeader other = TransferHeader::of(group_->slots[peer].transfer);
      if (other != mine) return different_collectives(rank_, to_string(mine), peer, to_string(other));
    }
    return ok();
  }

  DeviceTensor slot(std::uint32_t owner, std::size_t f, std::uint32_t index) const {
    const DeviceTensor& flat = group_->slots[owner].transfer.flats[f];
    const ElementCount length = flat.count() / size();
    return flat.slice(length * index, length);
  }

  /// Call once all ranks have joined. On the rank's own thread, since it makes the rank's device current.
  Result<void> access_peers() {
    if (accesses_peers_) return ok();
    for (const RankSlot& peer : group_->slots) {
      if (&peer != &mine_) PENSTOCK_TRY(device_.access_peer(*peer.device));
    }
    accesses_peers_ = true;
    return ok();
  }

  /// Enqueues this rank's part of the data movement.
  Result<void> move() {
    PENSTOCK_TRY(access_peers());
    const Transfer& transfer = mine_.transfer;
    if (transfer.kind == Transfer::Kind::exchange) {
      for (std::uint32_t peer = 0; peer < size(); ++peer) {
        const ConstHostSpan from = group_->slots[peer].transfer.mine;
        if (from.empty()) continue;
        std::memcpy(transfer.all.data() + from.size().value() * peer, from.data(), from.size().value());
      }
      return ok();
    }
    auto pulled = pull();
    if (pulled && transfer.kind == Transfer::Kind::all_to_all) return ok();  // release_slices() records
    auto recorded = transfer.stream->record(
        *mine_.done);  // after an error too, since copies may have been enqueued before it
    return pulled ? recorded : pulled;
  }

  /// Makes the stream wait for the peers' slots, and for an all-gather copies them.
  Result<void> pull() {
    const Transfer& transfer = mine_.transfer;
    for (std::uint32_t peer = 0; peer < size(); ++peer) {
      if (peer == rank_) continue;
      PENSTOCK_TRY(transfer.stream->wait(*group_->slots[peer].ready));
      if (transfer.kind != Transfer::Kind::all_gather) continue;
      PENSTOCK_TRY(device_.copy_on_device(transfer.stream->handle(), slot(peer, 0, peer).bytes,
                                          slot(rank_, 0, peer).bytes));
    }
    return ok();
  }

  std::shared_ptr<Group> group_;
  std::uint32_t rank_;
  tiers::Device& device_;
  RankSlot& mine_;
  bool accesses_peers_ = false;
  // Of the collective in progress.
  std::optional<tiers::RunningTime> running_;
  TimePoint end_of_wait_{};
};

Result<std::unique_ptr<Communicator>> Group::join(std::uint32_t rank, tiers::Device& device,
                                                  Compute& compute) {
  const std::lock_guard lock(mutex);
  if (rank >= slots.size()) {
    return Error::invalid_argument("InProcessGroup::join")
        .object("rank")
        .wanted("below " + std::to_string(slots.size()))
        .got(rank);
  }
  if (slots[rank].ready) {
    return Error(ErrorCode::already_exists, "InProcessGroup::join").object("rank " + std::to_string(rank));
  }
  PENSTOCK_TRY_ASSIGN(auto ready, device.create_event());
  PENSTOCK_TRY_ASSIGN(auto done, device.create_event());
  slots[rank].device = &device;
  slots[rank].ready = std::move(ready);
  slots[rank].done = std::move(done);
  return std::make_unique<TransportCommunicator>(
      std::make_unique<InProcessTransport>(shared_from_this(), rank, device), compute);
}

}  // namespace

GroupMembership in_process_membership(std::shared_ptr<InProcessGroup> group, std::uint32_t rank) {
  if (group == nullptr) {
    return {.join = [](tiers::Device&, Compute&,
                       const CollectiveNeeds&) -> Result<std::unique_ptr<Communicator>> {
              return Error::invalid_argument("in_process_membership").object("group").reason("it is null");
            },
            .abandon = {}};
  }
  return {.join = [group, rank](tiers::Device& device, Compute& compute,
                                const CollectiveNeeds&) { return group->join(rank, device, compute); },
          .abandon =
              [group, rank](const Error& error) {
                // A second rank is a mistake of its caller: the first one goes on.
                auto* const own = dynamic_cast<Group*>(group.get());
                if (own == nullptr || !own->has_joined(rank)) group->abort(rank, error);
              }};
}

Result<std::shared_ptr<InProcessGroup>> InProcessGroup::create(std::uint32_t ranks,
                                                               const InProcessGroupOptions& options) {
  if (ranks == 0 || ranks > Compute::mean_inputs_max) {
    return Error::invalid_argument("InProcessGroup::create")
        .object("ranks")
        .wanted("from 1 to " + std::to_string(Compute::mean_inputs_max))
        .got(ranks);
  }
  if (options.deadline <= TimePoint::zero()) {
    return Error::invalid_argument("InProcessGroup::create")
        .object("deadline")
        .wanted("a time above 0")
        .got(std::to_string(options.deadline.count()) + " ns");
  }
  if (options.clock == nullptr) {
    return Error::invalid_argument("InProcessGroup::create").object("clock").reason("it is null");
  }
  return std::make_shared<Group>(ranks, options);
}

}  // namespace penstock::zero
