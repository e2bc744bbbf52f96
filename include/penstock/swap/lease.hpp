#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/base/ticket.hpp>
#include <penstock/swap/access.hpp>
#include <penstock/tiers/store/tensor.hpp>

#include <optional>
#include <utility>

namespace penstock::swap {

class Runtime;

/// The right to a tensor's bytes in host memory. While it lives, they stay and stay put. Move-only; ended by
/// end() or on destruction. The runtime outlives it. Used by one thread at a time.
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

  [[nodiscard]] HostSpan bytes() const { return bytes_; }
  [[nodiscard]] bool held() const { return runtime_ != nullptr; }
  /// Ends it. After modify and overwrite, the tensor has a new version.
  void end() noexcept;

 private:
  friend class Runtime;
  Lease(Runtime& runtime, tiers::TensorId tensor, Access access, HostSpan bytes)
      : runtime_(&runtime), tensor_(tensor), access_(access), bytes_(bytes) {}
  void swap(Lease& other) noexcept {
    std::swap(runtime_, other.runtime_);
    std::swap(tensor_, other.tensor_);
    std::swap(access_, other.access_);
    std::swap(bytes_, other.bytes_);
  }

  Runtime* runtime_ = nullptr;
  tiers::TensorId tensor_{};
  Access access_{};
  HostSpan bytes_;
};

/// A lease that was asked for, or announced, and not granted yet. Move-only; cancelled by cancel() or on destruction.
/// The runtime outlives it. Used by one thread at a time.
///
///     swap::PendingLease pending = runtime.request(tensor, swap::Access::read);
///     while (true) {
///       if (auto lease = pending.poll()) return std::move(*lease);   // Result<Lease>: granted, or why it never will be
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

  /// False once poll() has answered, and after cancel().
  [[nodiscard]] bool pending() const { return runtime_ != nullptr; }
  /// Asks for a lease that was only announced; nothing otherwise.
  void ask();
  /// None while the lease waits. Errors: those of Runtime::acquire, but for the failed write-behind's.
  [[nodiscard]] std::optional<Result<Lease>> poll();
  /// Withdraws the request; a lease that was granted meanwhile ends, and nothing counts as written.
  void cancel() noexcept;

 private:
  friend class Runtime;
  PendingLease(Runtime& runtime, tiers::TensorId tensor, Access access, std::optional<Ticket> ticket)
      : runtime_(&runtime), tensor_(tensor), access_(access), ticket_(ticket) {}
  void swap(PendingLease& other) noexcept {
    std::swap(runtime_, other.runtime_);
    std::swap(tensor_, other.tensor_);
    std::swap(access_, other.access_);
    std::swap(ticket_, other.ticket_);
  }

  Runtime* runtime_ = nullptr;
  tiers::TensorId tensor_{};
  Access access_{};
  std::optional<Ticket> ticket_;  // none: announced, and not asked for
};

}  // namespace penstock::swap
