#pragma once

#include <string>

namespace penstock::zero::test {

/// What happens to the calls of MPI that this program makes. Only those of MpiStream come here.
struct MpiCalls {
  int sends = 0;              ///< calls of MPI_Isend
  std::string failing;        ///< the name of the call that fails
  bool nothing_ends = false;  ///< MPI_Test says that a request has not ended

  static MpiCalls& instance();
};

}  // namespace penstock::zero::test
