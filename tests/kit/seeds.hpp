#pragma once

#include <cstdint>
#include <cstdlib>
#include <vector>

namespace penstock::test {

/// The first third of the seeds in [begin, end), one at least. With PENSTOCK_ALL_SEEDS set, all: `ctest -L seeds`.
[[nodiscard]] inline std::vector<std::uint64_t> seeds(std::uint64_t begin, std::uint64_t end) {
  const bool all = std::getenv("PENSTOCK_ALL_SEEDS") != nullptr;
  std::vector<std::uint64_t> seeds(all ? end - begin : (end - begin + 2) / 3);
  for (std::uint64_t& seed : seeds) seed = begin++;
  return seeds;
}

}  // namespace penstock::test
