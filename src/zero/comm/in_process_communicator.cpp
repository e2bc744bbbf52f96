#include <penstock/base/check.hpp>
#include <penstock/zero/comm/communicator.hpp>

#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <vector>

namespace penstock::zero {

namespace {

enum class Kind : std::uint8_t { all_gather, reduce_scatter, exchange };

/// What a rank has brought to its latest collective. Events are recorded again only once every peer has
/// enqueued its wait for the last record. `done` is recorded behind whatever the rank's stream does with
/// memory of its peers.
struct RankSlot {
  std::uint64_t posted = 0, moved = 0, left = 0;  // collectives that reached each stage
  Kind kind{};
  DeviceTensor flat;
  ConstHostSpan mine;
  std::unique_ptr<tiers::Event> ready, done;
};

class Group final : public InProcessGroup, public std::enable_shared_from_this<Group> {
 public:
  explicit Group(std::uint32_t ranks) : slots(ranks) {}
  Result<std::unique_ptr<Communicator>> join(std::uint32_t rank, tiers::Device& device,
                                             Compute& compute) override;
  void abort(std::uint32_t rank, const Error& error) noexcept override {
    const std::lock_guard lock(mutex);
    abort_locked(rank, error);
  }
  void abort_locked(std::uint32_t rank, const Error& error) noexcept {
    if (failure) return;
    failure = Error(ErrorCode::peer_failed, "Communicator")
                  .reason("rank " + std::to_string(rank) + " failed")
                  .note("cause   " + error.message());
  }

  std::mutex mutex;
  std::vector<RankSlot> slots;
  std::optional<Error> failure;
};

class InProcessCommunicator final : public Communicator {
 public:
  InProcessCommunicator(std::shared_ptr<Group> group, std::uint32_t rank, tiers::Device& device,
                        Compute& compute)
      : group_(std::move(group)), rank_(rank), device_(device), compute_(compute) {}
  ~InProcessCommunicator() override { InProcessCommunicator::abort(left()); }

  std::uint32_t rank() const override { return rank_; }
  std::uint32_t size() const override { return static_cast<std::uint32_t>(group_->slots.size()); }

  Result<void> start_all_gather(tiers::Stream& stream, DeviceSpan flat) override {
    return post(Kind::all_gather, &stream, {flat, DType::bf16}, {}, {});
  }
  Result<void> start_reduce_scatter(tiers::Stream& stream, DeviceTensor flat) override {
    return post(Kind::reduce_scatter, &stream, flat, {}, {});
  }
  Result<void> start_exchange(ConstHostSpan mine, HostSpan all) override {
    if (all.size() != mine.size() * size()) {
      return Error::invalid_argument("Communicator::exchange").wanted(mine.size() * size()).got(all.size());
    }
    return post(Kind::exchange, nullptr, {}, mine, all);
  }

  Result<bool> enqueued() override {
    const std::lock_guard lock(group_->mutex);
    RankSlot& seat = group_->slots[rank_];
    if (seat.moved < seat.posted) {
      // The memory of a rank that failed may be gone.
      if (group_->failure) return *group_->failure;
      if (!all_reached(&RankSlot::posted, seat.posted)) return false;
      PENSTOCK_TRY(agree());
      auto moved = move();
      seat.moved = seat.posted;
      if (!moved) {
        group_->abort_locked(rank_, moved.error());
        return moved.error();
      }
    }
    // A rank that leaves after the last collective does not spoil it.
    if (!all_reached(&RankSlot::moved, seat.posted)) {
      if (group_->failure) return *group_->failure;
      return false;
    }
    if (stream_ != nullptr) {
      // Peers have read this rank's slots only once their copies are done.
      for (std::uint32_t peer = 0; peer < size(); ++peer) {
        if (peer != rank_) PENSTOCK_TRY(stream_->wait(*group_->slots[peer].done));
      }
    }
    seat.left = seat.posted;
    return true;
  }

  void abort(const Error& error) noexcept override { group_->abort(rank_, error); }

  void retire(tiers::Stream& stream) noexcept override {
    const std::lock_guard lock(group_->mutex);
    group_->abort_locked(rank_, left());
    const RankSlot& mine = group_->slots[rank_];
    // From here on no peer starts to read. What those do who have moved in this rank's last collective ends
    // with their `done`; in one that went well, this rank's stream waits for it already.
    for (const RankSlot& peer : group_->slots) {
      if (&peer == &mine || peer.moved < mine.posted || mine.posted == 0) continue;
      (void)stream.wait(*peer.done);  // a stream that cannot wait runs nothing more either
    }
  }

 private:
  static Error left() { return Error(ErrorCode::peer_failed, "Communicator").reason("the rank has left"); }

  Result<void> post(Kind kind, tiers::Stream* stream, DeviceTensor flat, ConstHostSpan mine, HostSpan all) {
    const std::lock_guard lock(group_->mutex);
    if (group_->failure) return *group_->failure;
    RankSlot& seat = group_->slots[rank_];
    PENSTOCK_CHECK(seat.left == seat.posted);  // one at a time
    if (flat.bytes.size().value() % (size() * size_of(flat.dtype).value()) != 0) {
      return Error::invalid_argument("Communicator::start")
          .reason("a flat is a whole number of equal slots")
          .wanted(size())
          .got(flat.bytes.size());
    }
    seat.kind = kind;
    seat.flat = flat;
    seat.mine = mine;
    stream_ = stream;
    all_ = all;
    if (stream != nullptr) PENSTOCK_TRY(stream->record(*seat.ready));
    ++seat.posted;
    return ok();
  }

  bool all_reached(std::uint64_t RankSlot::*stage, std::uint64_t count) const {
    for (const RankSlot& seat : group_->slots) {
      if (seat.*stage < count) return false;
    }
    return true;
  }

  Result<void> agree() const {
    const RankSlot& mine = group_->slots[rank_];
    for (std::uint32_t peer = 0; peer < size(); ++peer) {
      const RankSlot& other = group_->slots[peer];
      if (other.kind == mine.kind && other.flat.bytes.size() == mine.flat.bytes.size() &&
          other.flat.dtype == mine.flat.dtype && other.mine.size() == mine.mine.size()) {
        continue;
      }
      return Error::invalid_argument("Communicator")
          .reason("ranks " + std::to_string(rank_) + " and " + std::to_string(peer) +
                  " call different collectives")
          .wanted(mine.flat.bytes.size())
          .got(other.flat.bytes.size());
    }
    return ok();
  }

  DeviceTensor slot(std::uint32_t owner, std::uint32_t index) const {
    const DeviceTensor& flat = group_->slots[owner].flat;
    const ElementCount length = flat.count() / size();
    return flat.slice(length * index, length);
  }

  /// This rank's part of the data movement: it pulls from its peers.
  Result<void> move() {
    if (group_->slots[rank_].kind == Kind::exchange) {
      for (std::uint32_t peer = 0; peer < size(); ++peer) {
        const ConstHostSpan from = group_->slots[peer].mine;
        if (!from.empty())
          std::memcpy(all_.data() + from.size().value() * peer, from.data(), from.size().value());
      }
      return ok();
    }
    auto pulled = pull();
    auto recorded = stream_->record(*group_->slots[rank_].done);
    return pulled ? recorded : pulled;
  }

  Result<void> pull() {
    const RankSlot& seat = group_->slots[rank_];
    std::vector<DeviceTensor> slices;
    for (std::uint32_t peer = 0; peer < size(); ++peer) {
      slices.push_back(slot(peer, rank_));
      if (peer == rank_) continue;
      PENSTOCK_TRY(stream_->wait(*group_->slots[peer].ready));
      if (seat.kind == Kind::all_gather) {
        PENSTOCK_TRY(
            device_.copy_on_device(stream_->handle(), slot(peer, peer).bytes, slot(rank_, peer).bytes));
      }
    }
    if (seat.kind == Kind::reduce_scatter) {
      PENSTOCK_TRY(compute_.mean(stream_->handle(), slices, slot(rank_, rank_)));
    }
    return ok();
  }

  std::shared_ptr<Group> group_;
  std::uint32_t rank_;
  tiers::Device& device_;
  Compute& compute_;
  tiers::Stream* stream_ = nullptr;  // of the collective under way
  HostSpan all_;
};

Result<std::unique_ptr<Communicator>> Group::join(std::uint32_t rank, tiers::Device& device,
                                                  Compute& compute) {
  const std::lock_guard lock(mutex);
  if (rank >= slots.size()) {
    return Error::invalid_argument("InProcessGroup::join").object("rank").wanted(slots.size()).got(rank);
  }
  if (slots[rank].ready)
    return Error(ErrorCode::already_exists, "InProcessGroup::join").object("rank " + std::to_string(rank));
  auto ready = device.create_event();
  if (!ready) return ready.error();
  auto done = device.create_event();
  if (!done) return done.error();
  slots[rank].ready = std::move(*ready);
  slots[rank].done = std::move(*done);
  return std::make_unique<InProcessCommunicator>(shared_from_this(), rank, device, compute);
}

}  // namespace

std::shared_ptr<InProcessGroup> InProcessGroup::create(std::uint32_t ranks) {
  PENSTOCK_CHECK(ranks > 0);
  return std::make_shared<Group>(ranks);
}

}  // namespace penstock::zero
