#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/tiers/store/tensor.hpp>

#include <cstdint>
#include <optional>
#include <utility>

namespace penstock::swap {

class Runtime;

/// What a lease is for. `read` leases are counted; `modify` and `overwrite` are exclusive; `overwrite` loads
/// nothing, and what it does not write is undefined.
enum class Access : std::uint8_t { read, modify, overwrite };

/// Whether a request counts as a use in the trace, from which reading ahead and eviction know the future. Uses that
/// do not recur, such as those of a checksum over everything, are better not recorded.
enum class Use : std::uint8_t { recorded, unrecorded };

/// A request of one runtime.
enum class RequestId : std::uint64_t {};

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

  PendingLease(Runtime& runtime, tiers::TensorId tensor, Access access, std::optional<RequestId> request)
      : runtime_(&runtime), tensor_(tensor), access_(access), request_(request) {}
  void swap(PendingLease& other) noexcept {
    std::swap(runtime_, other.runtime_);
    std::swap(tensor_, other.tensor_);
    std::swap(access_, other.access_);
    std::swap(request_, other.request_);
  }

  Runtime* runtime_ = nullptr;
  tiers::TensorId tensor_{};
  Access access_{};
  std::optional<RequestId> request_;  // none: announced, and not asked for
};

}  // namespace penstock::swap
