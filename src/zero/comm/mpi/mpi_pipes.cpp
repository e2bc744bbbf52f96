#include "zero/comm/mpi/mpi_pipes.hpp"

#include "base/duration_text.hpp"
#include "zero/comm/mpi/mpi_error.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

namespace penstock::zero {

namespace {

using namespace std::chrono_literals;

constexpr const char* operation = "MpiPipes::open";

/// Between two processes of one machine, an exchange of 64 MiB took 3 % longer than with messages of 512 KiB, and 10 %
/// less than with 128 KiB. With many peers, messages to several of them are under way together, and memory is limited.
MpiStream::Options streams_for(std::uint32_t ranks) {
  constexpr std::size_t memory_max = 128 * 1024 * 1024, slot_min = 64 * 1024;
  MpiStream::Options streams{.slot_bytes = 256 * 1024, .slots = 4};
  while (2 * streams.slots * streams.slot_bytes * ranks > memory_max && streams.slot_bytes > slot_min)
    streams.slot_bytes /= 2;
  return streams;
}

constexpr TimePoint close_max = 1s;

// wait() looks again after a quarter of the time waited, so that it adds at most a quarter. A sleep takes 50 us longer
// than asked (the kernel's timer slack), so shorter pauses only yield. A thousand looks a second cost 2 % of a core.
constexpr TimePoint pause_min = 50us, pause_max = 1ms;

Result<void> check_place(const MpiPipesOptions& options) {
  int rank = 0, ranks = 0;
  int status = MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (status == MPI_SUCCESS) status = MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (status != MPI_SUCCESS) return mpi_error(ErrorCode::peer_failed, operation, "MPI_Comm_size", status);
  const auto text = [](auto r, auto size) {
    return "rank " + std::to_string(r) + " of " + std::to_string(size);
  };
  if (text(rank, ranks) == text(options.rank, options.ranks)) return ok();
  return Error::invalid_argument(operation)
      .reason("MPI gives this process another rank than its launcher")
      .wanted(text(options.rank, options.ranks))
      .got(text(rank, ranks))
      .advice("start all ranks, and nothing else, with the mpirun of the same MPI, and give no other rank");
}

}  // namespace

Result<std::unique_ptr<MpiPipes>> MpiPipes::open(const MpiPipesOptions& options) {
  return open(options, streams_for(options.ranks));
}

Result<std::unique_ptr<MpiPipes>> MpiPipes::open(const MpiPipesOptions& options,
                                                 const MpiStream::Options& streams) {
  PENSTOCK_TRY_ASSIGN(MpiSession session, MpiSession::start(options.deadline, options.has_failed));
  if (auto place = check_place(options); !place) {
    session.do_not_wait();  // for ranks that will not come either
    return std::move(place).error();
  }
  std::unique_ptr<MpiPipes> pipes(new MpiPipes(std::move(session), options.has_failed));
  PENSTOCK_TRY(pipes->make_communicator(options.deadline));
  pipes->streams_.resize(options.ranks);
  for (std::uint32_t peer = 0; peer < options.ranks; ++peer) {
    if (peer == options.rank) continue;
    PENSTOCK_TRY_ASSIGN(pipes->streams_[peer],
                        MpiStream::open(pipes->comm_, static_cast<int>(peer), streams));
  }
  return pipes;
}

Result<void> MpiPipes::make_communicator(TimePoint deadline) {
  MPI_Request request = MPI_REQUEST_NULL;
  // On the heap, because an abandoned call writes it later.
  auto comm = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
  int finished = 0;
  int status = MPI_Comm_idup(MPI_COMM_WORLD, comm.get(), &request);
  for (const TimePoint begin = Clock::steady().now(); status == MPI_SUCCESS;) {
    status = MPI_Test(&request, &finished, MPI_STATUS_IGNORE);
    if (finished != 0) break;
    const bool has_failed = has_failed_ && has_failed_();
    if (has_failed || Clock::steady().now() - begin >= deadline) {
      (void)comm.release();
      session_.do_not_wait();
      if (has_failed) return Error(ErrorCode::peer_failed, operation).reason("a rank has failed");
      return Error(ErrorCode::deadline_exceeded, operation)
          .reason("not all ranks have opened their pipes")
          .got(duration_text(deadline) + " without an answer")
          .advice("look for the first error of the other ranks");
    }
    std::this_thread::sleep_for(pause_max);
  }
  if (status != MPI_SUCCESS) {
    (void)comm.release();
    return mpi_error(ErrorCode::peer_failed, operation, "MPI_Comm_idup", status);
  }
  comm_ = *comm;
  status = MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  if (status == MPI_SUCCESS) return ok();
  return mpi_error(ErrorCode::peer_failed, operation, "MPI_Comm_set_errhandler", status);
}

MpiPipes::~MpiPipes() {
  if (MpiSession::is_finalized() || comm_ == MPI_COMM_NULL) return;
  const TimePoint end = Clock::steady().now() + close_max;
  bool finished = true;
  for (const auto& stream : streams_) {
    if (stream) finished &= stream->close(end);
  }
  // The communicator stays until the process ends: a peer may have sent what nobody receives, and MPI would give it to
  // the next communicator, which has the same number once this one is free.
  if (!finished || (has_failed_ && has_failed_())) session_.do_not_wait();
}

Result<std::size_t> MpiPipes::write(std::uint32_t peer, ConstHostSpan bytes) {
  return streams_[peer]->write(bytes);
}

Result<std::size_t> MpiPipes::read(std::uint32_t peer, HostSpan bytes) {
  return streams_[peer]->read(bytes);
}

/// Lets MPI make progress for all peers, of interest or not: one may wait for what is being sent.
bool MpiPipes::is_ready(std::span<const Interest> interests) noexcept {
  bool ready = false;
  for (std::size_t peer = 0; peer < streams_.size(); ++peer) {
    MpiStream* const stream = streams_[peer].get();
    if (!stream) continue;
    const bool can_read = stream->can_read(), can_write = stream->can_write();
    ready = ready || (interests[peer].read && can_read) || (interests[peer].write && can_write);
  }
  return ready;
}

void MpiPipes::wait(std::span<const Interest> interests, TimePoint at_most) noexcept {
  for (const auto& stream : streams_) {
    if (stream) stream->send();
  }
  const TimePoint begin = Clock::steady().now();
  while (!is_ready(interests) && !is_woken_) {
    const TimePoint waited = Clock::steady().now() - begin;
    if (waited >= at_most) break;
    const TimePoint pause = std::min({waited / 4, pause_max, at_most - waited});
    if (pause < pause_min) {
      std::this_thread::yield();
      continue;
    }
    std::unique_lock lock(mutex_);
    wakes_.wait_for(lock, pause, [this] { return is_woken_.load(); });
  }
  is_woken_ = false;
}

void MpiPipes::wake() noexcept {
  {
    const std::lock_guard lock(mutex_);
    is_woken_ = true;
  }
  wakes_.notify_one();
}

}  // namespace penstock::zero
