#pragma once

#include <penstock/base/result.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::zero {

/// The number of tasks of node `node` in a list such as "4(x2),3": four on each of two nodes, then three on one. The
/// format of SLURM_STEP_TASKS_PER_NODE, https://slurm.schedmd.com/srun.html. Errors: invalid_argument.
[[nodiscard]] Result<std::uint32_t> slurm_tasks_of_node(std::string_view list, std::uint32_t node);

/// The first name of a list such as "rack[1-2]n[07,9],login". Errors: invalid_argument.
[[nodiscard]] Result<std::string> slurm_first_node(std::string_view list);

}  // namespace penstock::zero
