#include <penstock/tiers/choose_engine.hpp>
#include <penstock/tiers/thread_pool_engine.hpp>
#include <penstock/tiers/uring_engine.hpp>

namespace penstock::tiers {

Result<ChosenEngine> choose_engine(EngineChoice choice, std::uint32_t depth) {
  ChosenEngine chosen;
  if (choice != EngineChoice::threads) {
    auto uring = create_uring_engine({.depth = depth});
    if (uring) {
      chosen.engine = std::move(*uring);
      return chosen;
    }
    if (choice == EngineChoice::io_uring) return uring.error();
    chosen.reason = "threads instead of io_uring: " + uring.error().message();
  }
  auto threads = create_thread_pool_engine({.depth = depth});
  if (!threads) return threads.error();
  chosen.engine = std::move(*threads);
  return chosen;
}

}  // namespace penstock::tiers
