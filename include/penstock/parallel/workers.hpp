#pragma once

#include <penstock/base/executor.hpp>
#include <penstock/base/result.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace penstock::parallel {

/// The threads that touch payload: updates, checksums, accumulation of gradients. A wrapper of one TBB arena.
///
///     auto workers = Workers::create({.threads = 4}).value();
///     workers.parallel_blocks(count, [&](std::size_t first, std::size_t last) { … });   // disjoint ranges
///
/// Move-only. Safe from any thread; parallel_blocks() blocks its caller, who works along. Work is divided
/// statically, and no result may depend on how. The destructor waits for what was posted.
class Workers final : public Executor {
 public:
  struct Options {
    std::uint32_t threads = 1;  ///< the caller included; 1 runs inline and touches no TBB
  };

  /// Starts no thread: TBB does when there is work, up to one a hardware thread; it says so on standard error
  /// when asked for more.
  ///
  /// Errors: invalid_argument, for no threads or more than 1024.
  [[nodiscard]] static Result<Workers> create(const Options& options);

  Workers(Workers&&) noexcept;
  Workers& operator=(Workers&&) noexcept;
  ~Workers() override;

  [[nodiscard]] std::uint32_t threads() const { return threads_; }

  /// Runs `task` later on a thread of the arena, or at once on the caller's where that is the only one.
  void post(std::function<void()> task) override;

  /// Calls body(first, last) for disjoint ranges that together are [0, count), from several threads at once,
  /// and returns when all are done. `body` must not throw.
  template <std::invocable<std::size_t, std::size_t> Body>
  void parallel_blocks(std::size_t count, Body&& body) noexcept {
    run(count, const_cast<void*>(static_cast<const void*>(std::addressof(body))),
        [](void* context, std::size_t first, std::size_t last) noexcept {
          (*static_cast<std::remove_reference_t<Body>*>(context))(first, last);
        });
  }

 private:
  using Range = void (*)(void* context, std::size_t first, std::size_t last) noexcept;
  struct Arena;

  Workers(std::uint32_t threads, std::unique_ptr<Arena> arena) noexcept;
  void run(std::size_t count, void* context, Range range) noexcept;

  std::uint32_t threads_;
  std::unique_ptr<Arena> arena_;  // null when the caller does all the work
};

}  // namespace penstock::parallel
