#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/time.hpp>

#include "zero/comm/process/peer_pipes.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace penstock::zero {

struct MpiPipesOptions {
  std::uint32_t rank = 0, ranks = 1;  ///< of this process, as its launcher has told
  /// How long MPI may take to start, and a rank to wait for all others to open their pipes, or to end.
  TimePoint deadline = std::chrono::minutes(30);
  /// Whether a rank may be lost, so that neither the start nor the end of the process need wait for it. Empty: no.
  std::function<bool()> has_failed = {};
};

/// What libpenstock_mpi.so gives to the program that loads it. Only that library is linked with MPI, so that a program
/// runs where there is none.
struct MpiModule {
  static constexpr const char* file = "libpenstock_mpi.so";
  static constexpr const char* entry = "penstock_mpi_module";
  using Entry = const MpiModule*();

  /// Equal on both sides, because objects of C++ pass between them. The last number counts changes of those objects.
  static constexpr const char* this_build =
      "Penstock " PENSTOCK_VERSION ", compiler " __VERSION__ ", interface 2";

  const char* build = nullptr;
  Result<std::unique_ptr<PeerPipes>> (*open_pipes)(const MpiPipesOptions& options) = nullptr;
};

}  // namespace penstock::zero
