#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/tiers/tier.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace penstock::tiers {

enum class PageKind : std::uint8_t { transparent_huge, huge, base };

[[nodiscard]] std::string_view to_string(PageKind kind);

/// One mapping of host memory, its size rounded up to whole pages, of 2 MiB if possible: with 4 KiB pages the kernel
/// splits a disk request in four, which costs several times the CPU time.
///
/// Not part of core dumps, and not inherited by child processes unless Options::is_inherited. Populated at creation, so
/// that later page faults cannot fail. Move-only; outlives every engine that uses its bytes. Safe from any thread.
class HostArena {
 public:
  static constexpr ByteCount page = 2_MiB;

  struct Options {
    ByteCount size;
    Pinning pinning = Pinning::none;  ///< mlock: the kernel does not move or swap the pages
    /// NUMA nodes: of one, the pages are its while it has memory; of several, in turns. None: the kernel chooses.
    std::vector<std::uint32_t> nodes = {};
    /// Forked children have the memory too, copy on write. It has no hugetlb pages: where their pool has none left for
    /// the copy, the kernel ends a process.
    bool is_inherited = false;
  };

  /// Errors: no_space, of check_memory(), before anything is allocated; permission, when pinning is required and
  /// RLIMIT_MEMLOCK is too small.
  [[nodiscard]] static Result<HostArena> create(const Options& options);

  HostArena(HostArena&& other) noexcept { swap(other); }
  HostArena& operator=(HostArena&& other) noexcept {
    swap(other);
    return *this;
  }
  ~HostArena();

  /// The part of `range` that consists of whole pages of `page` bytes.
  [[nodiscard]] static HostSpan whole_pages(HostSpan range);
  /// Gives the whole pages of `range` back to the operating system until take_back(). Their contents are lost; code
  /// that uses them nevertheless gets new pages, with zeros. Returns how many bytes the kernel has taken.
  /// Precondition: no device and no I/O engine has registered the memory.
  ByteCount give_back(HostSpan range) noexcept;
  /// Populates the whole pages of `range`, and pins them if the arena is pinned. If they cannot be pinned any more, the
  /// arena counts as not pinned, and its notes say so.
  ///
  /// Errors: no_space, of check_memory() and of the kernel: the pages are still given back.
  Result<void> take_back(HostSpan range);

  /// Keeps the memory mapped until the process ends, because the kernel or a device may still use it.
  void leak() noexcept { bytes_ = {}; }

  [[nodiscard]] HostSpan bytes() const { return bytes_; }
  [[nodiscard]] PageKind page_kind() const { return page_kind_; }
  [[nodiscard]] bool pinned() const { return pinned_; }
  /// Refused options (page size, nodes, pinning), with reasons, in one line; empty when there are none.
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

}  // namespace penstock::tiers
