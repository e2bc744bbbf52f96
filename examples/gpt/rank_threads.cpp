#include "gpt/rank_threads.hpp"

#include <cstring>
#include <future>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace gpt {

using penstock::Error;
using penstock::ErrorCode;
using penstock::Result;

Result<void> run_ranks(std::uint32_t ranks, const std::function<void(std::uint32_t)>& run) {
  std::promise<bool> decision;
  const std::shared_future<bool> all_started = decision.get_future().share();
  std::vector<std::jthread> threads;
  try {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&run, all_started, rank] {
        if (all_started.get()) run(rank);
      });
    }
  } catch (const std::system_error& refused) {
    decision.set_value(false);
    return Error(ErrorCode::no_space, "run_ranks")
        .reason(std::string("a thread cannot be started: ") + std::strerror(refused.code().value()))
        .object("rank " + std::to_string(threads.size()))
        .wanted(std::to_string(ranks) + " threads")
        .advice("raise the limit on processes and threads (ulimit -u, pids.max of the container)");
  }
  decision.set_value(true);
  return penstock::ok();
}

}  // namespace gpt
