#pragma once

#include "gpt/model_description.hpp"

#include <penstock/parallel/workers.hpp>

namespace gpt {

/// ModelDescription::initial_values() with all workers.
void initial_values(const ModelDescription& model, ParameterId id, std::uint64_t first,
                    std::span<float> values, penstock::parallel::Workers& workers);

}  // namespace gpt
