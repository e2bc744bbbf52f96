#pragma once

#include "base/splitmix64.hpp"
#include "zero/comm/transport.hpp"

#include <penstock/zero/comm/communicator.hpp>

#include <cstdint>

namespace penstock::zero {

/// A hash of the collectives that this rank has put in their order, which ranks compare at each step: not every
/// transport compares the collectives themselves. Used by the trainer's thread.
class CollectiveTrace {
 public:
  void add(Transfer::Kind kind, const CollectiveSignature& signature) {
    for (const std::uint64_t value : {std::uint64_t(kind), std::uint64_t(signature.subject),
                                      std::uint64_t{signature.unit}, std::uint64_t{signature.group},
                                      std::uint64_t{signature.micro_batch}, signature.step, signature.others})
      hash_ = splitmix64_add(hash_, value);
  }
  [[nodiscard]] std::uint64_t hash() const { return hash_; }
  /// After an interruption ranks have put different numbers of collectives in their order.
  void restart() { hash_ = 0; }

 private:
  std::uint64_t hash_ = 0;
};

}  // namespace penstock::zero
