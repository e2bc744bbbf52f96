#include "tiers/memory/host_pages.hpp"

#include "base/start_thread.hpp"

#include <sys/mman.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <thread>
#include <vector>

namespace penstock::tiers {

namespace {

// The kernel fills pages with zeros at some 10 GB/s a thread.
constexpr ByteCount bytes_of_thread = 256_MiB;
constexpr std::uint64_t threads_max = 16;

/// The error number; 0: none.
int populate_in_this_thread(std::byte* address, std::uint64_t size) {
#ifdef MADV_POPULATE_WRITE
  if (::madvise(address, size, MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
#endif
  for (std::uint64_t at = 0; at < size; at += 4096) address[at] = std::byte{0};
  return 0;
}

}  // namespace

std::mutex& population_mutex() {
  static std::mutex mutex;
  return mutex;
}

bool populate(std::byte* address, ByteCount size) {
  const std::uint64_t parts = std::clamp<std::uint64_t>(
      std::min<std::uint64_t>(size / bytes_of_thread, std::thread::hardware_concurrency()), 1, threads_max);
  // Whole huge pages: two threads must not meet in one.
  const std::uint64_t part = round_up(ceil_divide(size.value(), parts), (2_MiB).value());
  std::atomic<int> failure = 0;
  const auto populate_part = [&](std::uint64_t number) {
    const std::uint64_t begin = std::min(number * part, size.value());
    const int error = populate_in_this_thread(address + begin, std::min(part, size.value() - begin));
    if (error != 0) failure = error;
  };
  std::vector<std::thread> threads;
  threads.reserve(parts - 1);
  std::uint64_t next = 1;
  for (; next < parts; ++next) {
    auto started =
        start_thread("populate", "a thread that populates memory", [&, next] { populate_part(next); });
    if (!started) break;  // this thread does the rest
    threads.push_back(*std::move(started));
  }
  populate_part(0);
  for (; next < parts; ++next) populate_part(next);
  for (std::thread& thread : threads) thread.join();
  errno = failure;
  return failure == 0;
}

}  // namespace penstock::tiers
