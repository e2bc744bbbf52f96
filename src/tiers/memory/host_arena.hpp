#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/tiers/tier.hpp>

#include <string>
#include <utility>

namespace penstock::tiers {

enum class PageKind : std::uint8_t { transparent_huge, huge, base };

[[nodiscard]] std::string_view to_string(PageKind kind);

/// One mapping of host memory of exactly the size asked for (rounded up to 2 MiB), on 2 MiB pages where
/// they can be had: with pages of 4 KiB a disk request is cut in four and costs several times the CPU.
///
/// Kept out of children and core dumps. Populated at once: later page faults cannot fail.
/// Move-only; outlives every engine that knows its bytes. Safe from any thread.
class HostArena {
 public:
  struct Options {
    ByteCount size;
    Pinning pinning = Pinning::none;  ///< mlock, so that the kernel never moves or swaps the pages
  };

  /// Errors: no_space, when the machine or its cgroup cannot give so much; permission, when pinning is
  /// required and RLIMIT_MEMLOCK refuses.
  [[nodiscard]] static Result<HostArena> create(const Options& options);

  HostArena(HostArena&& other) noexcept { swap(other); }
  HostArena& operator=(HostArena&& other) noexcept {
    swap(other);
    return *this;
  }
  ~HostArena();

  /// The memory stays mapped for as long as the process lives: the kernel or a device may use it still.
  void leak() noexcept { bytes_ = {}; }

  [[nodiscard]] HostSpan bytes() const { return bytes_; }
  [[nodiscard]] PageKind page_kind() const { return page_kind_; }
  [[nodiscard]] bool pinned() const { return pinned_; }
  /// What was asked for and refused, in one line; empty when nothing was.
  [[nodiscard]] const std::string& notes() const { return notes_; }

 private:
  HostArena() = default;
  void swap(HostArena& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(page_kind_, other.page_kind_);
    std::swap(pinned_, other.pinned_);
    std::swap(notes_, other.notes_);
  }

  HostSpan bytes_;
  PageKind page_kind_ = PageKind::base;
  bool pinned_ = false;
  std::string notes_;
};

/// Bytes that this process could still get: the least of MemAvailable and what its cgroup leaves.
[[nodiscard]] ByteCount available_host_memory();

}  // namespace penstock::tiers
