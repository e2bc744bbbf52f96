#pragma once

#include <penstock/base/result.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace penstock::zero {

/// A host and a TCP port.
struct Endpoint {
  std::string host;  ///< a name or an address, an IPv6 address without brackets
  std::uint16_t port = 0;

  bool operator==(const Endpoint&) const = default;
  /// Of "host:port" or "[address]:port". Errors: invalid_argument.
  [[nodiscard]] static Result<Endpoint> parse(std::string_view text);
};
[[nodiscard]] std::string to_string(const Endpoint& endpoint);

/// What a command line says about this process' place in its job.
struct LaunchOptions {
  std::optional<std::uint32_t> rank, ranks, local_rank, local_ranks;
  std::optional<Endpoint> master;
};

/// The place of a process in a job of several, as its launcher has told.
struct Launch {
  std::uint32_t rank = 0, ranks = 1;
  /// On this machine. Without values the launcher does not say; the ranks find out when they meet.
  std::optional<std::uint32_t> local_rank, local_ranks;
  /// MASTER_ADDR and MASTER_PORT: where ranks find rank 0. Without a value nothing tells.
  std::optional<Endpoint> master;
  std::string job;     ///< the launcher's name of the job, equal on all of its ranks; may be empty
  std::string source;  ///< who told, and what: "torchrun: RANK=1 WORLD_SIZE=4"
};

/// The value of an environment variable, if it is set.
using Environment = std::function<std::optional<std::string>(const char* name)>;
[[nodiscard]] Environment process_environment();

/// The first of these that names a rank. PENSTOCK_JOB names the job, else what is named last:
///
/// - `options`.
/// - torchrun: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE; TORCHELASTIC_RUN_ID.
/// - Open MPI: OMPI_COMM_WORLD_RANK, …_SIZE, …_LOCAL_RANK, …_LOCAL_SIZE; PMIX_NAMESPACE.
/// - MPICH and Intel MPI: PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS. Not what Slurm's plugin pmi2 has set.
/// - A step of Slurm: SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_TASKS_PER_NODE; SLURM_JOB_ID with
///   SLURM_STEP_ID.
/// - PMIx: PMIX_RANK, WORLD_SIZE; PMIX_NAMESPACE.
///
/// Without any: one rank. Slurm sets the variables of a rank in a batch script too, where SLURM_STEP_ID is no step's:
/// they do not count there.
///
/// The master is that of `options`, else MASTER_ADDR and MASTER_PORT. Without MASTER_ADDR it is the first node of
/// SLURM_STEP_NODELIST in a step of Slurm, and this machine where all ranks are local. Without MASTER_PORT the port
/// follows from the name of the job, so that two jobs of a machine do not meet; it is 29500 for a job without a name.
///
/// Errors: invalid_argument, naming the variable or option: no number, one of a pair without the other, a rank that is
/// not below its count, a port out of range. Also for numbers of one launcher that contradict each other, naming both:
/// ranks of a machine are numbered in the order of their ranks in the job, so LOCAL_RANK is at most RANK. Numbers of
/// different launchers are not compared: torchrun in a step of Slurm is torchrun.
[[nodiscard]] Result<Launch> find_launch(const LaunchOptions& options = {},
                                         const Environment& environment = process_environment());

}  // namespace penstock::zero
