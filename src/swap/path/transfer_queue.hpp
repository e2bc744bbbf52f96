#pragma once

#include <penstock/tiers/io/io_engine.hpp>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory_resource>
#include <vector>

namespace penstock::swap {

/// The transfers of a path that have not begun, or not as a whole, in the order in which they will.
///
/// Urgent reads go before urgent writes, and these before all others; each kind in the order of push() or hasten().
/// After urgent_run turns of urgent transfers, one goes to those that have waited, so that none waits for ever. A flush
/// waits for the writes pushed before it.
///
/// Owned by one thread, or used with a lock. Allocates nothing once it has held as many transfers before.
class TransferQueue {
 public:
  static constexpr std::uint32_t urgent_run = 3;

  struct Transfer {
    std::uint32_t slot = 0;  ///< of the owner
    tiers::IoOperation operation{};
    const std::atomic<bool>* urgent = nullptr;  ///< null: it never is
  };

  /// It is urgent if it says so now.
  void push(const Transfer& transfer);
  /// The transfer with this flag, if it is queued, is urgent from now on.
  void hasten(const std::atomic<bool>& urgent);

  [[nodiscard]] bool empty() const { return reads_.empty() && writes_.empty() && others_.empty(); }
  /// The slot of the next one. Precondition: not empty().
  [[nodiscard]] std::uint32_t front() { return next().front().slot; }
  /// A part of it has begun: its turn is over. `whole`: it leaves the queue.
  void pass(bool whole);
  /// It is not queued any more, if it was.
  void remove(std::uint32_t slot);
  /// The slots of all, which are not queued any more.
  [[nodiscard]] std::vector<std::uint32_t> take_all();

 private:
  struct Queued : Transfer {
    std::uint64_t number = 0;  // in the order of push()
  };
  using Transfers = std::pmr::deque<Queued>;
  [[nodiscard]] Transfers& next();
  [[nodiscard]] Transfers& queue_of(const Transfer& transfer);
  [[nodiscard]] bool front_must_wait() const;

  std::pmr::unsynchronized_pool_resource nodes_;
  Transfers reads_{&nodes_}, writes_{&nodes_};  // urgent ones
  Transfers others_{&nodes_};
  std::uint64_t pushed_ = 0;
  std::uint32_t turns_of_reads_ = 0;   // while others waited, since one of these
  std::uint32_t turns_of_urgent_ = 0;  // while others_ waited, since one of these
};

}  // namespace penstock::swap
