#pragma once

#include "zero/config/reader.hpp"
#include "zero/config/schema.hpp"

namespace penstock::zero::config {

/// Applies the rules between keys of a file: computes values that follow from other keys, and reports errors that only
/// a file can contain. check() reports errors that a configuration made in code can contain too.
void apply_rules(Draft& draft, Reader& reader, std::uint32_t world_size);

/// Whether the parameters are the masters by one of the keys *_master_weights_and_grads, and not because they are fp32.
[[nodiscard]] bool has_16_bit_masters(const Config& config);

/// penstock.tiles_in_flight, where nothing says it: of each directory of nvme_path as many as of one, because a tile is
/// on one drive.
[[nodiscard]] std::uint32_t usual_tiles_in_flight(const Config& config);

/// The name of optimizer.type, as DeepSpeed spells it.
[[nodiscard]] const char* name_of(const OptimizerConfig& optimizer);

/// The draft from which apply_rules() would make this configuration.
[[nodiscard]] Draft draft_of(const Config& config);

/// The same with what the engine makes of a value that the configuration leaves open, where only the configuration
/// decides that.
[[nodiscard]] Draft effective_draft_of(Config config);

}  // namespace penstock::zero::config
