#pragma once

#include <penstock/base/executor.hpp>
#include <penstock/tiers/store/tensor.hpp>
#include "swap/path/path.hpp"

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

namespace penstock::swap {

/// The progress of a hop.
enum class HopState : std::uint8_t {
  pending,
  ordered,  ///< all work is enqueued on a stream: a waiter on its event may use the result; the source is in use
  done,     ///< the hop uses neither source nor destination any more
};

/// One part of a move: disk I/O, copy, gather, reduce, or computation. A small state machine.
/// Called by the mover only, without the runtime's lock. Does not block.
class Hop {
 public:
  Hop() = default;
  Hop(const Hop&) = delete;
  Hop& operator=(const Hop&) = delete;
  virtual ~Hop() = default;

  /// Allocates from a pool: several threads create and destroy hops with every transfer.
  static void* operator new(std::size_t size);
  static void operator delete(void* hop, std::size_t size) noexcept;

  virtual Result<void> start() = 0;
  [[nodiscard]] virtual Result<HopState> poll() = 0;
  /// After which time the mover polls the hop again. forever: an event wakes the mover once the hop can continue.
  [[nodiscard]] virtual TimePoint poll_interval() const { return forever; }
  /// True while the hop waits for a lease or for another move of this rank, and holds nothing that others wait for.
  [[nodiscard]] virtual bool is_blocked() const { return false; }

 private:
  friend struct Move;
  friend class TransferEngine;
  std::unique_ptr<Hop> next_;
};

/// A move of any number of hops, run one after the other.
struct Move {
  std::unique_ptr<Hop> first;
  /// Called with `ordered` if the last hop reports it, then exactly once with `done` and the result. Runs with the
  /// runtime's lock held.
  std::function<void(HopState, const Result<void>&)> on_event;

  /// Appends `hop` to the hops of the move.
  void then(std::unique_ptr<Hop> hop);
};

/// A state that a move has reached since the last poll.
struct MoveEvent {
  std::function<void(HopState, const Result<void>&)> on_event;
  HopState state = HopState::pending;
  Result<void> result;
};

/// The moves in flight. An error ends its move. The owner of a move frees its resources after the event `done`.
///
/// start() and poll() are called by the mover: one thread at a time, without the runtime's lock.
class TransferEngine {
 public:
  /// `paths` outlive it.
  explicit TransferEngine(std::span<const std::unique_ptr<Path>> paths) : paths_(paths) {}

  /// Counts a move as active from its decision, before start(), until end(). Both are called with the runtime's lock
  /// held.
  void announce() { active_.fetch_add(1); }
  /// The owner has handled the event `done` of a move.
  void end() { active_.fetch_sub(1); }

  void start(Move move);
  /// Polls every move and appends to `events`. True if any move advanced.
  bool poll(std::vector<MoveEvent>& events);

  /// Moves announced and not ended. Safe from any thread.
  [[nodiscard]] std::size_t active() const { return active_.load(); }
  /// Active moves that were blocked when poll() last returned. Safe from any thread.
  [[nodiscard]] std::size_t blocked() const { return blocked_.load(); }
  /// After which time poll() must be called again, if no event wakes the mover before: the shortest of the moves' hops,
  /// and of the paths that watch their drivers (Path::watch_interval).
  [[nodiscard]] TimePoint poll_interval() const;

  /// The name of the swap file that contains `extent`, for messages.
  [[nodiscard]] const std::string& file_name(const tiers::Extent& extent) const {
    return paths_[extent.path]->file().name;
  }
  /// A hop that reads or writes `buffer` at an extent, or flushes the swap file of the extent's path; for a
  /// flush, `buffer` is empty and the range of the extent is ignored.
  /// `urgent`: Path::Command::urgent.
  [[nodiscard]] std::unique_ptr<Hop> disk_hop(tiers::IoOperation operation, const tiers::Extent& extent,
                                              HostSpan buffer, const std::atomic<bool>* urgent = nullptr);
  /// See Path::hasten(). Safe from any thread.
  void hasten(std::uint32_t path, const std::atomic<bool>& urgent) { paths_[path]->hasten(urgent); }

 private:
  class DiskHop;
  struct Active {
    Move move;
    Hop* hop;  // the current one; null after the last
    bool started = false, ordered = false, finished = false;
  };
  bool advance(Active& active, std::vector<MoveEvent>& events);

  std::span<const std::unique_ptr<Path>> paths_;
  std::vector<Active> moves_;
  std::vector<tiers::BlockFile::Finished> outcomes_;
  std::atomic<std::size_t> active_{0}, blocked_{0};
};

/// A hop that runs `work`, a Result<void>(), on an executor, and then calls `wake`, which outlives it.
template <class Work>
class WorkHop final : public Hop {
 public:
  WorkHop(Executor& executor, const std::function<void()>& wake, Work work)
      : executor_(executor), wake_(wake), work_(std::move(work)) {}
  /// Waits until the executor task has called wake_: after the destruction of its hops, the owner of a move may destroy
  /// the object that wake_ wakes.
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
  [[nodiscard]] Result<HopState> poll() override {
    if (!done_.load(std::memory_order_acquire)) return HopState::pending;
    PENSTOCK_TRY(result_);
    return HopState::done;
  }

 private:
  Executor& executor_;
  const std::function<void()>& wake_;
  Work work_;
  Result<void> result_;
  bool posted_ = false;
  std::atomic<bool> done_{false}, left_{false};
};

template <class Work>
[[nodiscard]] std::unique_ptr<Hop> make_work_hop(Executor& executor, const std::function<void()>& wake,
                                                 Work work) {
  return std::make_unique<WorkHop<Work>>(executor, wake, std::move(work));
}
template <class Work>
std::unique_ptr<Hop> make_work_hop(Executor& executor, std::function<void()>&& wake, Work work) = delete;

}  // namespace penstock::swap
