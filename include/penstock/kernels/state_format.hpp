#pragma once

#include <cstdint>
#include <string_view>

namespace penstock::kernels {

/// How a tile stores master weights and moments. The numbers reach disk and are never reused.
enum class StateFormat : std::uint8_t {
  fp32 = 0,        ///< master, m, v in fp32: 12 bytes a parameter, the reference
  split = 1,       ///< remainder of the bf16 master, m, v in fp32: 10
  split_bf16 = 2,  ///< remainder, m, v in bf16: 6
  split_q8 = 3,    ///< remainder, m, v in 8 bits with a scale for each 256: 4.01
};

[[nodiscard]] std::string_view to_string(StateFormat format);

}  // namespace penstock::kernels
