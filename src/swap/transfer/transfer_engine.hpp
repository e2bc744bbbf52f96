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

/// How far a hop has come.
enum class HopState : std::uint8_t {
  pending,
  ordered,  ///< the rest is enqueued on a stream: who waits for its event may use the bytes, the source stays
  done,     ///< source and destination are not used any more
};

/// One leg of a move: disk, copy, gather, reduce, or work on the payload. A small state machine.
/// Called by the mover alone, without the coordinator's lock. Nothing here blocks.
class Hop {
 public:
  Hop() = default;
  Hop(const Hop&) = delete;
  Hop& operator=(const Hop&) = delete;
  virtual ~Hop() = default;

  /// Hops come and go with each transfer, on several threads: a pool keeps their memory.
  static void* operator new(std::size_t size);
  static void operator delete(void* hop, std::size_t size) noexcept;

  virtual Result<void> start() = 0;
  [[nodiscard]] virtual Result<HopState> poll() = 0;
  /// False when nothing wakes the mover once it can go on, so that it must look again by itself.
  [[nodiscard]] virtual bool wakes_the_mover() const { return true; }
  /// True while it holds nothing that others wait for and can only go on once the swapper grants it a lease,
  /// or another move of this rank has gone on.
  [[nodiscard]] virtual bool is_blocked() const { return false; }

 private:
  friend struct Move;
  friend class TransferEngine;
  std::unique_ptr<Hop> next_;
};

/// A move of any number of hops, run one after the other.
struct Move {
  std::unique_ptr<Hop> first;
  /// Told of `ordered` (by the last hop, if at all) and then of `done`, with the result, exactly once.
  /// Runs with the coordinator's lock.
  std::function<void(HopState, const Result<void>&)> on_event;

  /// `hop` runs after those that are there.
  void then(std::unique_ptr<Hop> hop);
};

/// What a move has reached since the last poll.
struct MoveEvent {
  std::function<void(HopState, const Result<void>&)> on_event;
  HopState state = HopState::pending;
  Result<void> result;
};

/// The table of moves in flight. Every error ends its move; what the move held is the caller's to free once
/// its event `done` has come.
///
/// start() and poll() belong to the mover: one thread at a time, without the coordinator's lock.
class TransferEngine {
 public:
  /// `paths` outlive it.
  explicit TransferEngine(std::span<const std::unique_ptr<Path>> paths) : paths_(paths) {}

  /// A move has been decided and will be started: from here until end() it counts as active. Both are
  /// called with the coordinator's lock.
  void announce() { active_.fetch_add(1); }
  /// The event `done` of a move was handled.
  void end() { active_.fetch_sub(1); }

  void start(Move move);
  /// Advances every move. Appends to `events` and returns whether anything happened.
  bool poll(std::vector<MoveEvent>& events);

  /// Moves announced and not ended. Safe from any thread.
  [[nodiscard]] std::size_t active() const { return active_.load(); }
  /// Of the active moves, those that were blocked when poll() last returned. Safe from any thread.
  [[nodiscard]] std::size_t blocked() const { return blocked_.load(); }
  /// Whether some move's hop will not wake the mover by itself.
  [[nodiscard]] bool needs_polling() const;

  /// The file that an extent is in, for messages.
  [[nodiscard]] const std::string& file_name(const tiers::Extent& extent) const {
    return paths_[extent.path]->file().name;
  }
  /// A hop that reads or writes `buffer` at an extent, or flushes the swap file of the extent's path; `buffer` is
  /// empty then, and the rest of the extent ignored.
  [[nodiscard]] std::unique_ptr<Hop> disk_hop(tiers::IoOperation operation, const tiers::Extent& extent,
                                              HostSpan buffer);

 private:
  class DiskHop;
  struct Active {
    Move move;
    Hop* hop;  // of the move's; null: all have run, or there is none
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
  [[nodiscard]] Result<HopState> poll() override {
    if (!done_.load(std::memory_order_acquire)) return HopState::pending;
    if (!result_) return result_.error();
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
