#include <penstock/cpu_adam/state_format.hpp>

#include "kernels/state_layout.hpp"

#include <algorithm>
#include <string>

namespace penstock::cpu_adam {

namespace {

constexpr std::array master_alone{StateKind::master};
constexpr std::array master_and_first{StateKind::master, StateKind::first_moment};
constexpr std::array master_and_second{StateKind::master, StateKind::second_moment};

unsigned moments_of(Optimizer optimizer) {
  return static_cast<unsigned>(states_of(optimizer).size()) - 1;  // all but the master
}

Result<void> check_layout(TileLayout layout) {
  if (states_of(layout.optimizer).empty()) {
    return Error::invalid_argument("tile_bytes")
        .object("optimizer")
        .wanted("adam, lion, adagrad, muon or a custom one")
        .got(static_cast<unsigned>(layout.optimizer));
  }
  if (!kernels::state_block_bytes(layout.format, 0)) {
    return Error::invalid_argument("tile_bytes")
        .object("format")
        .wanted("fp32, moments, moments_bf16, split, split_bf16 or split_q8")
        .got(static_cast<unsigned>(layout.format));
  }
  if (!kernels::state_block_bytes(layout.format, 0, moments_of(layout.optimizer))) {
    return Error::unsupported("tile_bytes")
        .object("format")
        .reason("the optimizer " + std::string(to_string(layout.optimizer)) + " does not take it")
        .wanted(moments_of(layout.optimizer) == 0 ? "fp32" : "fp32 or moments")
        .got(std::string(to_string(layout.format)));
  }
  return ok();
}

}  // namespace

std::span<const StateKind> states_of(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::adam:
    case Optimizer::custom_two_moments: return all_states;
    case Optimizer::lion:
    case Optimizer::muon:
    case Optimizer::custom_one_moment: return master_and_first;
    case Optimizer::adagrad: return master_and_second;
    case Optimizer::custom_no_moments: return master_alone;
  }
  return {};
}

bool keeps(Optimizer optimizer, StateKind kind) {
  const auto states = states_of(optimizer);
  return std::find(states.begin(), states.end(), kind) != states.end();
}

Result<ByteCount> tile_bytes(TileLayout layout, ElementCount elements) {
  PENSTOCK_TRY(check_layout(layout));
  const auto bytes = kernels::state_tile_bytes(layout.format, elements.value(), moments_of(layout.optimizer));
  if (!bytes) {
    return Error::invalid_argument("tile_bytes")
        .object("elements")
        .reason("element count overflows 64 bits of bytes")
        .got(elements);
  }
  return ByteCount(*bytes);
}

Result<ByteCount> block_bytes(TileLayout layout, ElementCount elements) {
  if (elements > block_elements) {
    return Error::invalid_argument("block_bytes")
        .object("elements")
        .reason("more than a block holds")
        .wanted(block_elements)
        .got(elements);
  }
  return tile_bytes(layout, elements);
}

ElementCount default_tile_elements(TileLayout layout) {
  const auto block = block_bytes(layout, block_elements);
  return block ? block_elements * (3_MiB / *block) : block_elements;
}

bool takes_parameter(StateFormat format, DType dtype) {
  return kernels::takes_parameter(format, dtype);
}

Alignment state_alignment(StateFormat format) {
  return Alignment(kernels::state_alignment_bytes(format));
}

}  // namespace penstock::cpu_adam
