#pragma once

#include "zero/comm/mpi/mpi_module.hpp"
#include "zero/comm/mpi/mpi_session.hpp"
#include "zero/comm/mpi/mpi_stream.hpp"
#include "zero/comm/process/peer_pipes.hpp"

#include <mpi.h>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace penstock::zero {

/// Pipes between all processes of MPI_COMM_WORLD, on a communicator of their own.
///
/// What was written leaves at the latest with the next wait().
class MpiPipes final : public PeerPipes {
 public:
  /// On all ranks together. Errors: those of MpiSession::start; invalid_argument, where MPI gives this process another
  /// rank than its launcher; deadline_exceeded.
  [[nodiscard]] static Result<std::unique_ptr<MpiPipes>> open(const MpiPipesOptions& options);
  /// The same with streams of other sizes, which are equal on all ranks.
  [[nodiscard]] static Result<std::unique_ptr<MpiPipes>> open(const MpiPipesOptions& options,
                                                              const MpiStream::Options& streams);
  /// Waits a second for peers to receive what was written, then leaves it to MPI.
  ~MpiPipes() override;

  Result<std::size_t> write(std::uint32_t peer, ConstHostSpan bytes) override;
  Result<std::size_t> read(std::uint32_t peer, HostSpan bytes) override;
  void wait(std::span<const Interest> interests, TimePoint at_most) noexcept override;
  void wake() noexcept override;

 private:
  MpiPipes(MpiSession session, std::function<bool()> has_failed)
      : session_(std::move(session)), has_failed_(std::move(has_failed)) {}

  Result<void> make_communicator(TimePoint deadline);
  [[nodiscard]] bool is_ready(std::span<const Interest> interests) noexcept;

  MpiSession session_;
  const std::function<bool()> has_failed_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::vector<std::unique_ptr<MpiStream>> streams_;  // by rank; null for this process

  std::mutex mutex_;
  std::condition_variable wakes_;
  std::atomic<bool> is_woken_ = false;
};

}  // namespace penstock::zero
