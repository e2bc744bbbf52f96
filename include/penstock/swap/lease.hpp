#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/tiers/store/tensor.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

namespace penstock::swap {

class Runtime;
class RuntimeInternals;
struct RuntimeState;

/// What a lease allows. Any number of `read` leases may exist at a time; `modify` and `overwrite` are exclusive.
/// `overwrite` does not load the tensor: bytes that the holder does not write are undefined.
enum class Access : std::uint8_t { read, modify, overwrite };
[[nodiscard]] constexpr std::string_view to_string(Access access) {
  switch (access) {
    case Access::read: return "read";
    case Access::modify: return "modify";
    case Access::overwrite: return "overwrite";
  }
  return "unknown";
}

/// Whether the trace of uses records a request. Prefetch and eviction predict the next round from the trace. Do not
/// record uses that do not recur in every round, such as those of a digest over all tensors.
enum class Use : std::uint8_t { recorded, unrecorded };

/// Identifies a request of one runtime.
enum class RequestId : std::uint64_t {};

/// Access to a tensor's bytes in host memory, which are not evicted or moved while the lease exists. Move-only. Ended
/// by end() or by destruction. Used by one thread at a time. If the runtime is destroyed first, the bytes stay valid
/// until the lease ends, and are then lost.
///
///     PENSTOCK_TRY_ASSIGN(swap::Lease lease, runtime.acquire(tensor, swap::Access::modify));
///     update(lease.bytes());
///     lease.end();          // the tensor has a new version
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept { swap(other); }
  Lease& operator=(Lease&& other) noexcept {
    end();
    swap(other);
    return *this;
  }
  ~Lease() { end(); }

  /// Empty once the lease has ended or was moved from.
  [[nodiscard]] HostSpan bytes() const { return bytes_; }
  [[nodiscard]] bool held() const { return runtime_ != nullptr; }
  /// Ends the lease. After `modify` and `overwrite` the tensor has a new version.
  void end() noexcept;

 private:
  friend class Runtime;

  friend class PendingLease;

  Lease(std::shared_ptr<RuntimeState> runtime, tiers::TensorId tensor, Access access, HostSpan bytes,
        std::thread::id owner)
      : runtime_(std::move(runtime)), tensor_(tensor), access_(access), bytes_(bytes), owner_(owner) {}
  void swap(Lease& other) noexcept {
    std::swap(runtime_, other.runtime_);
    std::swap(tensor_, other.tensor_);
    std::swap(access_, other.access_);
    std::swap(bytes_, other.bytes_);
    std::swap(owner_, other.owner_);
  }

  std::shared_ptr<RuntimeState> runtime_;
  tiers::TensorId tensor_{};
  Access access_{};
  HostSpan bytes_;
  std::thread::id owner_;  // the thread whose acquire() returned it; none for a PendingLease's
};

/// A lease that was not granted yet: it was requested, or it was announced and ask() requests it. The thread that
/// requests it polls it: while that thread waits in Runtime::acquire() instead, a grant that it has not polled counts
/// as memory that is not going to be freed. Move-only. Cancelled by cancel() or by destruction. Used by one thread at a
/// time. If the runtime is destroyed first, poll() returns failed_state.
///
///     swap::PendingLease pending = runtime.request(tensor, swap::Access::read);
///     while (true) {
///       if (auto lease = pending.poll()) return std::move(*lease);  // Result<Lease>: granted, or why it never will be
///       …                                                            // other work
///     }
class PendingLease {
 public:
  PendingLease() = default;
  PendingLease(PendingLease&& other) noexcept { swap(other); }
  PendingLease& operator=(PendingLease&& other) noexcept {
    cancel();
    swap(other);
    return *this;
  }
  ~PendingLease() { cancel(); }

  /// False once poll() has returned a result, and after cancel().
  [[nodiscard]] bool pending() const { return runtime_ != nullptr; }
  /// Requests the lease of Runtime::announce(); does nothing if it was requested already.
  void ask();
  /// Returns nothing while the request waits. Errors: those of Runtime::acquire, except the error of a failed
  /// write-behind.
  [[nodiscard]] std::optional<Result<Lease>> poll();
  /// Withdraws the request. If the lease was granted in the meantime it ends, and the tensor has no new version.
  void cancel() noexcept;

 private:
  friend class Runtime;
  friend class RuntimeInternals;

  PendingLease(std::shared_ptr<RuntimeState> runtime, tiers::TensorId tensor, Access access,
               std::optional<RequestId> request, bool use_is_counted)
      : runtime_(std::move(runtime)),
        tensor_(tensor),
        access_(access),
        request_(request),
        use_is_counted_(use_is_counted) {}
  PendingLease(std::shared_ptr<RuntimeState> runtime, Error refusal)
      : runtime_(std::move(runtime)), refusal_(std::move(refusal)) {}
  void swap(PendingLease& other) noexcept {
    std::swap(runtime_, other.runtime_);
    std::swap(tensor_, other.tensor_);
    std::swap(access_, other.access_);
    std::swap(request_, other.request_);
    std::swap(use_is_counted_, other.use_is_counted_);
    std::swap(refusal_, other.refusal_);
  }

  std::shared_ptr<RuntimeState> runtime_;
  tiers::TensorId tensor_{};
  Access access_{};
  std::optional<RequestId> request_;  // none: ask() makes it
  bool use_is_counted_ = false;       // as the tensor's next one, until the lease is requested
  std::optional<Error> refusal_;      // of a tensor that the runtime does not have
};

}  // namespace penstock::swap
