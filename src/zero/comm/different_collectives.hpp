#pragma once

#include <penstock/base/result.hpp>

#include <cstdint>
#include <string>

namespace penstock::zero {

/// The error of a rank whose peer has started another collective than itself.
[[nodiscard]] inline Error different_collectives(std::uint32_t rank, std::string own, std::uint32_t peer,
                                                 std::string other) {
  return Error::invalid_argument("Communicator")
      .reason("ranks " + std::to_string(rank) + " and " + std::to_string(peer) +
              " call different collectives")
      .wanted(std::move(own))
      .got(std::move(other))
      .advice(
          "call acquire, gradients, reduce, step and digest in the same order on every rank, with the same "
          "ModelLayout and data types, StepOptions (units_without_gradient, micro_batches) and restored "
          "step");
}

}  // namespace penstock::zero
