#include "zero/comm/collective_errors.hpp"

#include "base/duration_text.hpp"

namespace penstock::zero {

Error different_collectives(std::uint32_t rank, std::string own, std::uint32_t peer, std::string other) {
  return Error::invalid_argument("Communicator")
      .reason("ranks " + std::to_string(rank) + " and " + std::to_string(peer) +
              " call different collectives")
      .wanted(std::move(own))
      .got(std::move(other))
      .advice(
          "make all collective calls (acquire, gradients, reduce, step, commit, resume, digest, park and "
          "others) in "
          "the same order on every rank, with the same "
          "ModelLayout and data types, StepOptions (units_without_gradient, micro_batches) and restored "
          "step");
}

std::string names_of(const std::vector<std::uint32_t>& ranks) {
  std::string names;
  for (const std::uint32_t rank : ranks)
    names.append(names.empty() ? "rank " : ", rank ").append(std::to_string(rank));
  return names;
}

Error ranks_missing(std::string what, const std::string& missing, TimePoint deadline) {
  return Error(ErrorCode::deadline_exceeded, "Communicator")
      .reason("ranks are missing in a collective")
      .object(std::move(what))
      .got((missing.empty() ? "a rank" : missing) + " did not come in " + duration_text(deadline))
      .advice("look for the first error of the missing ranks, or raise the deadline of the group");
}

Error ended(Error cause, const std::string& collective) {
  return std::move(cause).note("in      " + collective);
}

}  // namespace penstock::zero
