#include "swap/transfer/transfer_engine.hpp"

#include <algorithm>
#include <memory_resource>

namespace penstock::swap {

namespace {

/// Never destroyed: hops may outlive static objects of other files.
std::pmr::memory_resource& hop_pool() {
  static auto& pool = *new std::pmr::synchronized_pool_resource;
  return pool;
}

}  // namespace

void* Hop::operator new(std::size_t size) {
  return hop_pool().allocate(size);
}

void Hop::operator delete(void* hop, std::size_t size) noexcept {
  hop_pool().deallocate(hop, size);
}

void Move::then(std::unique_ptr<Hop> hop) {
  std::unique_ptr<Hop>* last = &first;
  while (*last) last = &(*last)->next_;
  *last = std::move(hop);
}

/// Posts one transfer to a path; the engine delivers the outcome by the hop's address, which is its tag.
class TransferEngine::DiskHop final : public Hop {
 public:
  DiskHop(Path& path, const Path::Command& command) : path_(path), command_(command) {
    command_.tag = reinterpret_cast<std::uintptr_t>(this);
  }

  Result<void> start() override {
    path_.post(command_);
    return ok();
  }
  Result<HopState> poll() override {
    if (!outcome_) return HopState::pending;
    PENSTOCK_TRY(*outcome_);
    return HopState::done;
  }
  static void deliver(tiers::BlockFile::Finished&& finished) {
    reinterpret_cast<DiskHop*>(static_cast<std::uintptr_t>(finished.tag))->outcome_ =
        std::move(finished.result);
  }

 private:
  Path& path_;
  Path::Command command_;
  std::optional<Result<void>> outcome_;
};

std::unique_ptr<Hop> TransferEngine::disk_hop(tiers::IoOperation operation, const tiers::Extent& extent,
                                              HostSpan buffer, const std::atomic<bool>* urgent) {
  return std::make_unique<DiskHop>(
      *paths_[extent.path],
      Path::Command{
          .operation = operation, .offset = extent.offset, .buffer = buffer, .tag = 0, .urgent = urgent});
}

void TransferEngine::start(Move move) {
  Hop* const first = move.first.get();
  moves_.push_back({.move = std::move(move), .hop = first});
}

bool TransferEngine::poll(std::vector<MoveEvent>& events) {
  bool progress = false;
  blocked_.store(0);  // a hop whose lease is granted from here on is not blocked
  outcomes_.clear();
  for (const auto& path : paths_) path->take_outcomes(outcomes_);
  for (auto& outcome : outcomes_) DiskHop::deliver(std::move(outcome));

  for (Active& active : moves_) {
    while (advance(active, events)) progress = true;
  }
  std::erase_if(moves_, [](const Active& active) { return active.finished; });
  blocked_.store(
      static_cast<std::size_t>(std::count_if(moves_.begin(), moves_.end(), [](const Active& active) {
        return active.hop && active.hop->is_blocked();
      })));
  return progress;
}

TimePoint TransferEngine::poll_interval() const {
  TimePoint interval = forever;
  for (const Active& active : moves_) {
    if (active.hop) interval = std::min(interval, active.hop->poll_interval());
  }
  for (const auto& path : paths_) interval = std::min(interval, path->watch_interval());
  return interval;
}

/// Polls one move. True if it advanced.
bool TransferEngine::advance(Active& active, std::vector<MoveEvent>& events) {
  if (active.finished) return false;
  const auto finish = [&](Result<void> result) {
    events.push_back({active.move.on_event, HopState::done, std::move(result)});
    active.finished = true;
    return true;
  };
  if (active.hop == nullptr) return finish(ok());

  Hop& hop = *active.hop;
  if (!active.started) {
    active.started = true;
    if (auto started = hop.start(); !started) return finish(started);
    return true;
  }
  auto state = hop.poll();
  if (!state) return finish(state.error());
  switch (*state) {
    case HopState::pending: return false;
    case HopState::ordered:
      if (active.ordered || hop.next_) return false;
      active.ordered = true;
      events.push_back({active.move.on_event, HopState::ordered, ok()});
      return true;
    case HopState::done: break;
  }
  active.hop = hop.next_.get();
  active.started = false;
  return true;
}

}  // namespace penstock::swap
