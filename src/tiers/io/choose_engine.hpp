#pragma once

#include <penstock/tiers/io/file_system.hpp>
#include <penstock/tiers/io/io_engine.hpp>

#include <memory>
#include <string>

namespace penstock::tiers {

/// An engine, and why it is this one.
struct ChosenEngine {
  std::unique_ptr<IoEngine> engine;
  std::string reason;  ///< empty when the first choice worked, else what refused and how
};

/// Makes an engine of at most `depth` requests in flight that works for `file`: each candidate is tried out on
/// an instance of its own, which reads the file's first block. Without direct I/O libaio is passed over, since
/// it would block. Blocks.
///
/// Errors: unsupported, when the engine asked for by name does not work here.
[[nodiscard]] Result<ChosenEngine> choose_engine(EngineChoice choice, std::uint32_t depth,
                                                 const File::Properties& file);

}  // namespace penstock::tiers
