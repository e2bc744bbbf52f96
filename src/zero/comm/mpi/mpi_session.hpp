#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/time.hpp>

#include <functional>
#include <utility>

namespace penstock::zero {

/// The right to call MPI in this process.
///
/// The first one initialises MPI, unless the application has. Then the process finalises it when it exits: MPI allows
/// each only once. MPI_Finalize waits for all ranks, so exit waits until the deadline of start() for those that come
/// later, 5 s after do_not_wait(), and then goes on without them. It does not finalise while a session exists.
class MpiSession {
 public:
  /// Blocks until MPI has started, which takes all ranks, until `deadline` at the latest, or until `has_failed` says
  /// that one of them does not come. Any thread.
  ///
  /// Errors: unsupported, for MPI without MPI_THREAD_MULTIPLE; failed_state, where MPI is finalised;
  /// deadline_exceeded; peer_failed, with the error of MPI or of a rank that has failed; no_space, for a thread.
  [[nodiscard]] static Result<MpiSession> start(TimePoint deadline,
                                                const std::function<bool()>& has_failed = {});

  MpiSession(MpiSession&& other) noexcept : counted_(std::exchange(other.counted_, false)) {}
  MpiSession& operator=(MpiSession&&) = delete;
  ~MpiSession();

  /// A peer is gone, or may be: MPI may be left with operations that never end.
  void do_not_wait() noexcept;
  /// The application has finalised MPI.
  [[nodiscard]] static bool is_finalized() noexcept;

 private:
  explicit MpiSession(bool counted) : counted_(counted) {}
  bool counted_;
};

}  // namespace penstock::zero
