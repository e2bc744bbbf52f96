// A library for MPI that belongs to another build.
#include "zero/comm/mpi/mpi_module.hpp"

extern "C" const penstock::zero::MpiModule* penstock_mpi_module() {
  static constexpr penstock::zero::MpiModule module{.build = "Penstock 0.0.0"};
  return &module;
}
