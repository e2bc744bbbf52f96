#include "zero/engine/frozen_shard.hpp"

#include "kernels/host_kernels.hpp"
#include "zero/engine/host_view.hpp"

#include <algorithm>
#include <vector>

namespace penstock::zero {

namespace {

Result<HostView> host_view(const OffloadedOptimizer::Options& options, const FlatState& flat,
                           swap::Access access) {
  return HostView::of(*options.runtime, *options.device, flat.shard, flat.kept_shard,
                      options.device->parameter_piece(), access);
}

/// Calls body(first, bytes, values) for each piece of the shard, with room for its elements in fp32.
template <class Body>
Result<void> for_pieces(const OffloadedOptimizer::Options& options, const FlatState& flat, HostView& shard,
                        const Body& body) {
  const ByteCount element = size_of(options.parameter_dtype);
  const ElementCount end = flat.layout->shard;
  std::vector<float> values;
  for (ElementCount first; first < end;) {
    const ElementCount count = std::min(options.device->piece_elements(), end - first);
    PENSTOCK_TRY_ASSIGN(const HostSpan bytes, shard.piece(element * first.value(), element * count.value()));
    values.assign(count.value(), 0.0f);
    PENSTOCK_TRY(body(first, bytes, values));
    first += count;
  }
  return ok();
}

std::byte* bytes_of(std::vector<float>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

}  // namespace

Result<void> restore_frozen(const OffloadedOptimizer::Options& options, FlatState& flat, std::uint32_t rank,
                            const OffloadedOptimizer::StateSource& source, HostView& shard) {
  const ElementCount begin = flat.layout->shard * rank;
  return for_pieces(options, flat, shard,
                    [&](ElementCount first, HostSpan bytes, std::vector<float>& values) -> Result<void> {
                      PENSTOCK_TRY(source(*flat.layout, cpu_adam::StateKind::master, begin + first, values));
                      kernels::cast_elements({bytes_of(values), DType::fp32},
                                             {bytes.data(), options.parameter_dtype}, values.size());
                      return shard.write_back();
                    });
}

Result<void> visit_frozen(const OffloadedOptimizer::Options& options, const FlatState& flat,
                          const OffloadedOptimizer::StateVisitor& visit) {
  PENSTOCK_TRY_ASSIGN(auto shard, host_view(options, flat, swap::Access::read));
  return for_pieces(options, flat, shard,
                    [&](ElementCount first, HostSpan bytes, std::vector<float>& values) {
                      kernels::cast_elements({bytes.data(), options.parameter_dtype},
                                             {bytes_of(values), DType::fp32}, values.size());
                      return visit(flat, cpu_adam::StateKind::master, first, values);
                    });
}

}  // namespace penstock::zero
