#pragma once

#include <penstock/base/result.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::zero {

/// What a transport of collectives needs of the job's control channel: few bytes between all ranks, and the reasons why
/// a collective cannot proceed.
///
///     PENSTOCK_TRY(control.start_gather("collective", bytes));
///     auto all = control.poll_gather().value();            // later: (*all)[r] are those of rank r
///
/// One thread at a time gathers and recovers; any thread may call obstacle, fail, fail_job and interrupt. Only gather()
/// blocks, for a bounded time.
class JobControl {
 public:
  using Slots = std::vector<std::vector<std::byte>>;
  /// The label with which a rank gathers when it leaves the collectives. If others gather anything else, every rank's
  /// obstacle() is peer_failed, which names the rank.
  static constexpr std::string_view leave_label = "leave";

  JobControl() = default;
  JobControl(const JobControl&) = delete;
  JobControl& operator=(const JobControl&) = delete;
  virtual ~JobControl() = default;

  [[nodiscard]] virtual std::uint32_t rank() const = 0;
  [[nodiscard]] virtual std::uint32_t ranks() const = 0;

  /// Every rank's `bytes`, in the order of the ranks. Every rank calls it with the same `label`, which says what they
  /// are, one gathering at a time. Errors: obstacle(); failed_state, while another gathering is in flight.
  [[nodiscard]] virtual Result<Slots> gather(const std::string& label, std::span<const std::byte> bytes) = 0;
  /// The same without waiting: poll_gather() returns the slots once, when they are here; also after an interruption of
  /// another rank, if they were complete before. So all ranks get them, or none but the one that interrupts.
  virtual Result<void> start_gather(const std::string& label, std::span<const std::byte> bytes) = 0;
  [[nodiscard]] virtual Result<std::optional<Slots>> poll_gather() = 0;
  /// The ranks that have not come to the gathering or recovery in progress, as far as this rank knows; empty if it does
  /// not know.
  [[nodiscard]] virtual std::vector<std::uint32_t> absent() const = 0;

  /// Why no gathering can proceed: the first failure of the job, else its interruption. peer_failed and interrupted
  /// name the rank and contain the cause.
  [[nodiscard]] virtual std::optional<Error> obstacle() const = 0;
  /// This rank has failed: every rank's obstacle() is peer_failed with this cause. Without effect after a failure.
  virtual void fail(const Error& error) noexcept = 0;
  /// The job has failed, not this rank: every rank's obstacle() is `error` as it is. Without effect after a failure.
  virtual void fail_job(const Error& error) noexcept = 0;

  /// Ends the gathering in progress of every rank, if it is not complete, and obstacle() is `interrupted` with this
  /// cause until every rank has recovered. Without effect while the job is interrupted or has failed.
  virtual void interrupt(const Error& cause) noexcept = 0;
  /// Every rank calls it after an interruption; poll_recovery() returns true once, when all have, and bytes can be
  /// gathered again. Errors: the failure of the job; failed_state, where the job is not interrupted, or the recovery
  /// has started.
  virtual Result<void> start_recovery() = 0;
  [[nodiscard]] virtual Result<bool> poll_recovery() = 0;

  /// Sets the function that is called, on any thread and without a lock that the other members take, when what they
  /// return may have changed because of a peer. An empty function ends the calls. Waits for a call in progress.
  virtual void set_wake(std::function<void()> wake) = 0;
};

}  // namespace penstock::zero
