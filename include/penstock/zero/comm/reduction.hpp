#pragma once

#include <cstdint>
#include <string_view>

namespace penstock::zero {

/// The arithmetic of a reduction.
enum class Reduction : std::uint8_t {
  exact,  ///< adds in fp32 in rank order, and rounds the mean to the dtype once: the same bits on every transport
  native,  ///< the transport's own, such as ncclAvg; bits depend on the transport and the number of ranks
};
[[nodiscard]] constexpr std::string_view to_string(Reduction reduction) {
  switch (reduction) {
    case Reduction::exact: return "exact";
    case Reduction::native: return "native";
  }
  return "unknown";
}

}  // namespace penstock::zero
