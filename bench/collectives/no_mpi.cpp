#include "contestants.hpp"

namespace penstock::bench {

bool start_mpi(std::uint32_t) {
  return false;
}
void end_mpi() {}
Result<void> run_bare_mpi(Collective, std::byte*, ByteCount) {
  return Error::unsupported("bare MPI").reason("this build has no MPI");
}

}  // namespace penstock::bench
