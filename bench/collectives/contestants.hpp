#pragma once

#include <penstock/base/result.hpp>
#include <penstock/zero/comm/process_group.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace penstock::bench {

/// The collectives that are measured: an in-place all-gather, and a reduce-scatter with the exact mean of bf16, or
/// what others have for the movement of its bytes.
enum class Collective : std::uint8_t { all_gather, reduce_scatter };

/// One way to run a collective on this rank's flat of `slot` bytes a rank.
struct Contestant {
  std::string name;
  std::function<Result<void>(Collective collective, ByteCount slot)> run;
};

/// Memory of a rank and its contestants. The first is a copy by memcpy of as many bytes as the rank receives.
class Contest {
 public:
  /// Collective: joins a group for each carrier. `slot_max`: of the largest slot. `bare_mpi`: also MPI itself, and the
  /// carrier that uses it.
  [[nodiscard]] static Result<std::unique_ptr<Contest>> create(const zero::ProcessGroupOptions& options,
                                                               ByteCount slot_max, bool bare_mpi);
  virtual ~Contest() = default;
  [[nodiscard]] virtual const std::vector<Contestant>& contestants() const = 0;
  /// Returns when all ranks have called it.
  virtual Result<void> meet() = 0;
};

/// MPI's own collectives on bytes, on the ranks of MPI_COMM_WORLD. Of an all-to-all, for a reduce-scatter.
[[nodiscard]] Result<void> run_bare_mpi(Collective collective, std::byte* flat, ByteCount slot);
/// Initialises MPI for this process. False in a build without MPI, and where no launcher of MPI has started it with
/// `ranks` ranks.
[[nodiscard]] bool start_mpi(std::uint32_t ranks);
void end_mpi();

}  // namespace penstock::bench
