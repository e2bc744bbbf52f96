#include "gpt/disk_limit.hpp"

#include <penstock/base/time.hpp>
#include <penstock/tiers/host_arena.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace gpt {

using penstock::ByteCount;
using penstock::FileOffset;
using penstock::Result;
using penstock::tiers::BlockFile;

namespace {

enum class Pattern { read, write, mixed };

/// Transfers the whole file once in chunks, `depth` of them in flight; bytes a second.
Result<double> pass(penstock::swap::Path& path, penstock::HostSpan arena, ByteCount size, ByteCount chunk,
                    Pattern pattern, std::mutex& mutex, std::condition_variable& arrived) {
  constexpr std::size_t depth = 6;
  const std::uint64_t chunks = size / chunk;
  const auto began = penstock::Clock::steady().now();
  std::uint64_t posted = 0, finished = 0;
  std::vector<BlockFile::Finished> outcomes;
  while (finished < chunks) {
    while (posted < chunks && posted - finished < depth) {
      const bool read = pattern == Pattern::read || (pattern == Pattern::mixed && posted % 2 == 0);
      path.post({.direction = read ? BlockFile::Direction::read : BlockFile::Direction::write,
                 .offset = FileOffset(chunk.value() * posted),
                 .buffer = arena.subspan(chunk * (posted % depth), chunk),
                 .tag = posted});
      ++posted;
    }
    std::unique_lock lock(mutex);
    arrived.wait(lock, [&] { return path.take_outcomes(outcomes), !outcomes.empty(); });
    for (const auto& outcome : outcomes) {
      if (!outcome.result) return outcome.result.error();
    }
    finished += outcomes.size();
    outcomes.clear();
  }
  const std::chrono::duration<double> elapsed = penstock::Clock::steady().now() - began;
  return static_cast<double>((chunk * chunks).value()) / elapsed.count();
}

}  // namespace

Result<std::optional<DiskLimit>> measure_disk(penstock::swap::PathOptions options, ByteCount size) {
  const ByteCount chunk(3 << 20);  // an optimizer tile's
  auto free = penstock::tiers::real_file_system().free_space(options.directory);
  if (!free) return free.error();
  options.capacity = chunk * (std::min(size, *free / 2) / chunk);
  if (options.capacity < chunk * 16) return std::optional<DiskLimit>();
  // Before the path, whose driver uses them until it goes.
  std::mutex mutex;
  std::condition_variable arrived;
  auto arena = penstock::tiers::HostArena::create({.size = chunk * 6});
  if (!arena) return arena.error();
  auto path = penstock::swap::Path::create(options);
  if (!path) return path.error();
  (*path)->attach(arena->bytes());
  (*path)->start_driver([&] {
    const std::lock_guard lock(mutex);
    arrived.notify_one();
  });

  DiskLimit limit{.direct = (*path)->file().direct};
  const auto run = [&](Pattern pattern, double& rate) -> Result<void> {
    auto measured = pass(**path, arena->bytes(), options.capacity, chunk, pattern, mutex, arrived);
    if (!measured) return measured.error();
    rate = *measured;
    return penstock::ok();
  };
  const auto run_all = [&]() -> Result<void> {
    double pre_write = 0;  // unwritten extents are slower, and are not what training sees
    PENSTOCK_TRY(run(Pattern::write, pre_write));
    PENSTOCK_TRY(run(Pattern::mixed, limit.mixed));
    PENSTOCK_TRY(run(Pattern::read, limit.read));
    return run(Pattern::write, limit.write);
  };
  const auto measured = run_all();
  if (!(*path)->stop_driver()) arena->leak();  // a request hangs, and may still write there
  if (!measured) return measured.error();
  return std::optional(limit);
}

}  // namespace gpt
