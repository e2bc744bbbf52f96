#pragma once

#include <penstock/tiers/io_engine.hpp>

#include <memory>

namespace penstock::tiers {

/// Which engine the user asked for. `automatic` takes the first that works: io_uring, then threads.
enum class EngineChoice : std::uint8_t { automatic, io_uring, threads };

/// An engine, and why it is this one.
struct ChosenEngine {
  std::unique_ptr<IoEngine> engine;
  std::string reason;  ///< empty when the first choice worked, else what refused and how
};

/// Makes an engine of at most `depth` requests in flight.
///
/// Errors: unsupported, when the engine asked for by name does not work here.
[[nodiscard]] Result<ChosenEngine> choose_engine(EngineChoice choice, std::uint32_t depth);

}  // namespace penstock::tiers
