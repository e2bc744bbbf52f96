#include "gpt/initial_values.hpp"

#include <penstock/base/units.hpp>

#include <algorithm>

namespace gpt {

void initial_values(const ModelDescription& model, ParameterId id, std::uint64_t first,
                    std::span<float> values, penstock::parallel::Workers& workers) {
  constexpr std::size_t block = 4096;
  workers.parallel_blocks(
      penstock::ceil_divide(values.size(), block), [&](std::size_t begin, std::size_t end) {
        const auto part = values.subspan(begin * block, std::min(end * block, values.size()) - begin * block);
        model.initial_values(id, first + begin * block, part);
      });
}

}  // namespace gpt
