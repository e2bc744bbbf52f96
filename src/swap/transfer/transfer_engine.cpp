#include <penstock/swap/transfer_engine.hpp>

#include <algorithm>
#include <thread>

namespace penstock::swap {

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
    if (!*outcome_) return outcome_->error();
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

std::unique_ptr<Hop> TransferEngine::disk_hop(tiers::BlockFile::Direction direction,
                                              const tiers::Extent& extent, HostSpan buffer) {
  return std::make_unique<DiskHop>(
      *paths_[extent.path],
      Path::Command{.direction = direction, .offset = extent.offset, .buffer = buffer, .tag = 0});
}

void TransferEngine::start(Move move) {
  moves_.push_back(std::make_unique<Active>(Active{.move = std::move(move)}));
}

bool TransferEngine::poll(std::vector<MoveEvent>& events) {
  bool progress = false;
  blocked_.store(0);  // a hop that is granted its lease from here on waits no more
  outcomes_.clear();
  for (const auto& path : paths_) path->take_outcomes(outcomes_);
  for (auto& outcome : outcomes_) DiskHop::deliver(std::move(outcome));

  for (auto& active : moves_) {
    bool finished = false;
    while (advance(*active, events, finished)) progress = true;
    if (finished) active.reset();
  }
  std::erase(moves_, nullptr);
  blocked_.store(static_cast<std::size_t>(std::count_if(moves_.begin(), moves_.end(), [](const auto& active) {
    return active->hop < active->move.hops.size() && active->move.hops[active->hop]->is_blocked();
  })));
  return progress;
}

bool TransferEngine::needs_polling() const {
  return std::any_of(moves_.begin(), moves_.end(), [](const auto& active) {
    return active->hop < active->move.hops.size() && !active->move.hops[active->hop]->wakes_the_mover();
  });
}

/// One step of one move. True when it moved on; `finished` when it is over.
bool TransferEngine::advance(Active& active, std::vector<MoveEvent>& events, bool& finished) {
  if (finished) return false;
  const auto finish = [&](Result<void> result) {
    events.push_back({active.move.on_event, HopState::done, std::move(result)});
    finished = true;
    return true;
  };
  if (active.hop == active.move.hops.size()) return finish(ok());

  Hop& hop = *active.move.hops[active.hop];
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
      if (active.ordered || active.hop + 1 < active.move.hops.size()) return false;
      active.ordered = true;
      events.push_back({active.move.on_event, HopState::ordered, ok()});
      return true;
    case HopState::done: break;
  }
  ++active.hop;
  active.started = false;
  return true;
}

namespace {

class WorkHop final : public Hop {
 public:
  WorkHop(Executor& executor, std::function<Result<void>()> work, std::function<void()> wake)
      : executor_(executor), work_(std::move(work)), wake_(std::move(wake)) {}
  /// The task is past its last touch: once every hop is gone, so may be what wake_ wakes.
  ~WorkHop() override {
    while (posted_ && !left_.load(std::memory_order_acquire)) std::this_thread::yield();
  }

  Result<void> start() override {
    posted_ = true;
    executor_.post([this] {
      result_ = work_();
      done_.store(true, std::memory_order_release);
      wake_();
      left_.store(true, std::memory_order_release);
    });
    return ok();
  }
  Result<HopState> poll() override {
    if (!done_.load(std::memory_order_acquire)) return HopState::pending;
    if (!result_) return result_.error();
    return HopState::done;
  }

 private:
  Executor& executor_;
  std::function<Result<void>()> work_;
  std::function<void()> wake_;
  Result<void> result_;
  bool posted_ = false;
  std::atomic<bool> done_{false}, left_{false};
};

}  // namespace

std::unique_ptr<Hop> make_work_hop(Executor& executor, std::function<Result<void>()> work,
                                   std::function<void()> wake) {
  return std::make_unique<WorkHop>(executor, std::move(work), std::move(wake));
}

}  // namespace penstock::swap
