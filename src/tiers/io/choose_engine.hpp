#pragma once

#include <penstock/tiers/io/file_system.hpp>
#include <penstock/tiers/io/io_engine.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace penstock::tiers {

/// An engine and the reason for its choice.
struct ChosenEngine {
  std::unique_ptr<IoEngine> engine;
  std::string reason;  ///< empty for the first choice, else the engines that do not work, with their errors
};

/// Which files an engine is for: one, that it may register with the kernel, or others too. A registered file stays open
/// until the engine ends.
enum class EngineFiles : std::uint8_t { one, many };

/// Creates an engine with at most `depth` requests in flight that works for `file`. Tests each candidate by reading the
/// file's first block with a separate instance. Skips libaio without direct I/O, because it would block. Blocks.
///
/// Errors: unsupported, when an engine that was requested by name does not work.
[[nodiscard]] Result<ChosenEngine> choose_engine(EngineChoice choice, std::uint32_t depth,
                                                 const File::Properties& file,
                                                 EngineFiles files = EngineFiles::one);

}  // namespace penstock::tiers
