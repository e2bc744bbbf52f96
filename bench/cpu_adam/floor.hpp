#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock::bench {

/// One block of what no Adam in fp32 states can beat: each byte of its streams is read or written once, by
/// the widest vectors there are, and multiplied by a constant. `state` is [p][m][v], `count` elements each.
void scale_block(float* state, const std::uint16_t* gradient, std::uint16_t* parameter, std::size_t count,
                 float factor, std::uint16_t increment);

/// x *= factor, as a pass of its own.
void scale_gradient(float* x, std::size_t count, float factor);

}  // namespace penstock::bench
