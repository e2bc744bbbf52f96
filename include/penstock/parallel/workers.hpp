#pragma once

#include <penstock/base/executor.hpp>
#include <penstock/base/result.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace penstock::parallel {

/// The threads that process tensor data: updates, checksums, accumulation of gradients. A wrapper of one TBB arena.
///
///     auto workers = Workers::create({.threads = 4}).value();
///     workers.parallel_blocks(count, [&](std::size_t first, std::size_t last) { … });   // disjoint ranges
///
/// Move-only. Safe from any thread. parallel_blocks() blocks its caller, which runs part of the work. Work is divided
/// statically; no result may depend on the division. The destructor waits for posted tasks.
class Workers final : public Executor {
 public:
  struct Options {
    std::uint32_t threads = 1;  ///< including the calling thread; 1 runs inline, without TBB
  };

  /// TBB starts the threads when there is work, and ends the process where it cannot. Therefore as many threads are
  /// started and ended here first.
  ///
  /// Errors: invalid_argument, for no threads or more than 1024; no_space, where the threads cannot be started.
  [[nodiscard]] static Result<Workers> create(const Options& options);

  Workers(Workers&&) noexcept;
  Workers& operator=(Workers&&) noexcept;
  ~Workers() override;

  [[nodiscard]] std::uint32_t threads() const { return threads_; }

  /// Runs `task` later on a thread of the arena; with one thread, and after a move from this object, runs it at once
  /// on the calling thread. An empty one is ignored.
  void post(std::function<void()> task) override;

  /// Calls body(first, last) for disjoint ranges that together cover [0, count), from several threads at once, and
  /// returns when all are done. `body` must not throw.
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
  std::unique_ptr<Arena> arena_;  // null when the calling thread does all the work
};

}  // namespace penstock::parallel
