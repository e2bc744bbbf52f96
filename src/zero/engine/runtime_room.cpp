#include "zero/engine/runtime_room.hpp"

#include "swap/runtime_internals.hpp"
#include "zero/layout/host_staging.hpp"

#include <algorithm>
#include <string>

namespace penstock::zero {

Result<ByteCount> check_room(swap::Runtime& runtime, std::span<const swap::RuntimeUse> engines) {
  constexpr const char* operation = "Engine::create";
  const swap::RuntimeInternals internals(runtime);
  const swap::RuntimeUse& added = engines.back();
  const auto others = engines.first(engines.size() - 1);
  const std::string number = "engine number " + std::to_string(added.owner);
  if (std::any_of(others.begin(), others.end(),
                  [&](const swap::RuntimeUse& other) { return other.owner == added.owner; })) {
    return Error(ErrorCode::already_exists, operation)
        .object("engine_number")
        .reason("the runtime has an " + number + " already")
        .advice("give each engine on a runtime its own Engine::Options::engine_number");
  }
  const auto beside = [&](Error error) {
    return std::move(error)
        .object(number)
        .note("beside  " + std::to_string(others.size()) + " other engines on this runtime")
        .advice("create the runtime with the options that shared_runtime_options() returns for all engines");
  };
  if (const ByteCount wanted = host_memory(engines), memory = internals.host_capacity(); memory < wanted) {
    return beside(Error(ErrorCode::budget_too_small, operation)
                      .reason("the runtime has too little host memory for its engines")
                      .wanted(wanted)
                      .got(memory));
  }
  ByteCount swap;
  for (const swap::RuntimeUse& engine : engines) swap += engine.swap;
  if (const ByteCount capacity = internals.swap_capacity(); capacity < swap) {
    return beside(Error(ErrorCode::no_space, operation)
                      .reason("the runtime's swap files are too small for its engines")
                      .wanted(swap)
                      .got(capacity));
  }
  return staging_least(engines);
}

}  // namespace penstock::zero
