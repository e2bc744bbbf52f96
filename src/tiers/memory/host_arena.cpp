#include "tiers/memory/host_arena.hpp"

#include "base/notes.hpp"
#include "tiers/memory/host_pages.hpp"
#include "tiers/memory/huge_pages.hpp"
#include "tiers/memory/numa_memory.hpp"

#include <penstock/tiers/memory/memory_limits.hpp>

#include <sys/mman.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <mutex>
#include <span>

namespace penstock::tiers {

namespace {

std::string transparent_huge_pages() {
  std::ifstream stream("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string line;
  std::getline(stream, line);
  return line.empty() ? "cannot be read" : "is \"" + line + "\"";
}

/// A 2 MiB-aligned mapping of `size` bytes, or null. Over-maps and trims.
std::byte* map_aligned(std::uint64_t size) {
  const std::uint64_t total = size + HostArena::page.value();
  void* whole =
      ::mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (whole == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<std::uintptr_t>(whole);
  const std::uint64_t aligned = round_up(start, HostArena::page.value());
  if (aligned > start) ::munmap(whole, aligned - start);
  const std::uint64_t tail = start + total - (aligned + size);
  if (tail > 0) ::munmap(reinterpret_cast<void*>(aligned + size), tail);
  return reinterpret_cast<std::byte*>(aligned);
}

/// A populated mapping of the machine's reserved huge pages, which forked processes and core dumps leave out, or null.
std::byte* map_reserved(std::uint64_t size, std::span<const std::uint32_t> nodes) {
  void* const pages =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
  if (pages == MAP_FAILED) return nullptr;
  auto* const address = static_cast<std::byte*>(pages);
  ::madvise(pages, size, MADV_DONTFORK);
  ::madvise(pages, size, MADV_DONTDUMP);
  (void)prefer_nodes(HostSpan(address, ByteCount(size)), nodes);
  if (populate(address, ByteCount(size))) return address;
  ::munmap(pages, size);
  return nullptr;
}

/// What of the memory is not where it should be, with the reason. `refused`: why the kernel did not take the nodes.
std::string note_of_nodes(HostSpan memory, std::span<const std::uint32_t> nodes, const std::string& refused) {
  if (nodes.empty()) return {};
  const auto elsewhere = bytes_elsewhere(memory, nodes, HostArena::page);
  if (!refused.empty()) return "not bound to " + nodes_text(nodes) + ": " + refused;
  if (!elsewhere || elsewhere->is_zero()) return {};
  return to_string(*elsewhere) + " of " + to_string(memory.size()) + " are on other NUMA nodes, because " +
         nodes_text(nodes) + " had no more memory: access to them is slower";
}

Error refused(const char* operation, std::uint64_t size, int errno_value) {
  return Error(ErrorCode::no_space, operation)
      .reason(std::string("the kernel refuses host memory: ") + std::strerror(errno_value))
      .wanted(ByteCount(size));
}
Error refused_arena(std::uint64_t size, int errno_value) {
  return refused("HostArena::create", size, errno_value)
      .advice(
          "set a lower host budget (penstock.host_budget), or raise the limit on address space (ulimit -v)");
}

}  // namespace

std::string_view to_string(PageKind kind) {
  switch (kind) {
    case PageKind::transparent_huge: return "2 MiB pages (transparent)";
    case PageKind::huge: return "2 MiB pages (hugetlb)";
    case PageKind::base: break;
  }
  return "4 KiB pages";
}

Result<HostArena> HostArena::create(const Options& options) {
  HostArena arena;
  if (options.size.is_zero()) return arena;
  const std::lock_guard lock(population_mutex());
  PENSTOCK_TRY(check_memory("HostArena::create", options.size, memory_limit()));

  const std::uint64_t size = round_up(options.size.value(), HostArena::page.value());
  std::byte* address = map_aligned(size);
  if (address == nullptr) return refused_arena(size, errno);
  arena.bytes_ = HostSpan(address, ByteCount(size));
  if (!options.is_inherited) ::madvise(address, size, MADV_DONTFORK);
  ::madvise(address, size, MADV_DONTDUMP);
  const bool advised = ::madvise(address, size, MADV_HUGEPAGE) == 0;
  const std::string no_nodes = prefer_nodes(arena.bytes_, options.nodes);
  if (!populate(address, ByteCount(size))) return refused_arena(size, errno);

  const std::uint64_t huge = advised ? bytes_on_huge_pages(arena.bytes_).value() : 0;
  if (huge >= size) {
    arena.page_kind_ = PageKind::transparent_huge;
  } else if (std::byte* const pages = options.is_inherited ? nullptr : map_reserved(size, options.nodes)) {
    ::munmap(address, size);
    arena.bytes_ = HostSpan(pages, ByteCount(size));
    arena.page_kind_ = PageKind::huge;
  } else {
    arena.notes_ = "only " + to_string(ByteCount(huge)) + " of " + to_string(ByteCount(size)) +
                   " are on 2 MiB pages (transparent_hugepage " + transparent_huge_pages() +
                   (options.is_inherited ? ", hugetlb pages are not for memory of forked processes)"
                                         : ", no hugetlb pages are reserved)");
  }

  append_note(arena.notes_, note_of_nodes(arena.bytes_, options.nodes, no_nodes));
  if (options.pinning == Pinning::none) return arena;
  if (::mlock(arena.bytes_.data(), size) == 0) {
    arena.pinned_ = true;
    return arena;
  }
  const int cause = errno;
  if (options.pinning == Pinning::required) {
    return Error(ErrorCode::permission, "HostArena::create")
        .reason(std::string("memory cannot be pinned: ") + std::strerror(cause))
        .wanted(ByteCount(size))
        .advice("raise RLIMIT_MEMLOCK (ulimit -l) or set pin_memory to false");
  }
  append_note(arena.notes_, std::string("not pinned: ") + std::strerror(cause));
  return arena;
}

HostSpan HostArena::whole_pages(HostSpan range) {
  const auto begin = reinterpret_cast<std::uintptr_t>(range.data());
  const std::uint64_t first = round_up(begin, page.value());
  const std::uint64_t end = begin + range.size().value();
  const std::uint64_t last = end - end % page.value();
  if (first >= last) return {};
  return range.subspan(ByteCount(first - begin), ByteCount(last - first));
}

ByteCount HostArena::give_back(HostSpan range) noexcept {
  const HostSpan pages = whole_pages(range);
  // Those of hugetlb would return to their pool, from which no other program gets memory.
  if (pages.empty() || page_kind_ == PageKind::huge) return {};
  // The kernel keeps locked pages.
  if (pinned_ && ::munlock(pages.data(), pages.size().value()) != 0) return {};
  if (::madvise(pages.data(), pages.size().value(), MADV_DONTNEED) == 0) return pages.size();
  if (pinned_) ::mlock(pages.data(), pages.size().value());
  return {};
}

Result<void> HostArena::take_back(HostSpan range) {
  constexpr const char* operation = "HostArena::take_back";
  const HostSpan pages = whole_pages(range);
  if (pages.empty()) return ok();
  const std::lock_guard lock(population_mutex());
  PENSTOCK_TRY(check_memory(operation, pages.size(), memory_limit()));
  if (!populate(pages.data(), pages.size())) {
    const int cause = errno;
    ::madvise(pages.data(), pages.size().value(), MADV_DONTNEED);
    return refused(operation, pages.size().value(), cause);
  }
  if (!pinned_ || ::mlock(pages.data(), pages.size().value()) == 0) return ok();
  pinned_ = false;
  append_note(notes_, "not pinned any more: " + to_string(pages.size()) +
                          " that were given back cannot be locked again: " + std::strerror(errno));
  return ok();
}

HostArena::~HostArena() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size().value());
}

}  // namespace penstock::tiers
