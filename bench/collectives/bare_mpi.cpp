#include "contestants.hpp"

#include <mpi.h>

namespace penstock::bench {

bool start_mpi(std::uint32_t ranks) {
  int provided = 0, size = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS) return false;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (provided == MPI_THREAD_MULTIPLE && size == static_cast<int>(ranks)) return true;
  end_mpi();
  return false;
}

void end_mpi() {
  MPI_Finalize();
}

Result<void> run_bare_mpi(Collective collective, std::byte* flat, ByteCount slot) {
  const int count = static_cast<int>(slot.value());
  const int status = collective == Collective::all_gather
                         ? MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, flat, count, MPI_BYTE, MPI_COMM_WORLD)
                         : MPI_Alltoall(MPI_IN_PLACE, 0, MPI_BYTE, flat, count, MPI_BYTE, MPI_COMM_WORLD);
  if (status == MPI_SUCCESS) return ok();
  return Error(ErrorCode::peer_failed, "bare MPI").reason("MPI returns " + std::to_string(status));
}

}  // namespace penstock::bench
