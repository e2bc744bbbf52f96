#pragma once

#include <penstock/base/result.hpp>
#include <penstock/zero/launch/launch.hpp>

#include "zero/comm/mpi/mpi_module.hpp"

namespace penstock::zero {

/// Loads libpenstock_mpi.so: the file that the environment variable PENSTOCK_MPI names; else the one beside the file
/// that this code is linked into, or beside the program, or in the folder for libraries of their prefix; else the one
/// that the dynamic linker finds. It stays loaded.
///
/// Errors: unsupported, where this build has no MPI, or the file or what it needs cannot be loaded, or it belongs to
/// another build.
[[nodiscard]] Result<const MpiModule*> load_mpi_module(
    const Environment& environment = process_environment());

}  // namespace penstock::zero
