#include <penstock/cpu_adam/workers.hpp>

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>
#include <string>

namespace penstock {

struct Workers::Arena {
  explicit Arena(std::uint32_t threads) : arena(static_cast<int>(threads)) {}
  tbb::task_arena arena;
};

Result<Workers> Workers::create(const Options& options) {
  constexpr std::uint32_t threads_max = 1024;
  if (options.threads == 0 || options.threads > threads_max) {
    return Error::invalid_argument("Workers::create")
        .object("threads")
        .wanted("1 to " + std::to_string(threads_max))
        .got(options.threads);
  }
  auto arena = options.threads > 1 ? std::make_unique<Arena>(options.threads) : nullptr;
  return Workers(options.threads, std::move(arena));
}

Workers::Workers(std::uint32_t threads, std::unique_ptr<Arena> arena) noexcept
    : threads_(threads), arena_(std::move(arena)) {}
Workers::Workers(Workers&&) noexcept = default;
Workers& Workers::operator=(Workers&&) noexcept = default;
Workers::~Workers() = default;

void Workers::run(std::size_t count, void* context, Range range) noexcept {
  if (count == 0) return;
  if (!arena_ || count == 1) return range(context, 0, count);
  arena_->arena.execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<std::size_t>(0, count),
        [&](const tbb::blocked_range<std::size_t>& part) { range(context, part.begin(), part.end()); },
        tbb::static_partitioner());
  });
}

}  // namespace penstock
