#include "zero/comm/mpi/mpi_module.hpp"

#include "zero/comm/mpi/mpi_pipes.hpp"

extern "C" __attribute__((visibility("default"))) const penstock::zero::MpiModule* penstock_mpi_module() {
  using namespace penstock::zero;
  static constexpr MpiModule module{
      .build = MpiModule::this_build,
      .open_pipes = [](const MpiPipesOptions& options) -> penstock::Result<std::unique_ptr<PeerPipes>> {
        PENSTOCK_TRY_ASSIGN(std::unique_ptr<PeerPipes> pipes, MpiPipes::open(options));
        return pipes;
      }};
  return &module;
}
