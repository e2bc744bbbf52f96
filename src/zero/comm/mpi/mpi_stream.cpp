#include "zero/comm/mpi/mpi_stream.hpp"

#include "zero/comm/mpi/mpi_error.hpp"

#include <sys/mman.h>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace penstock::zero {

namespace {

constexpr int tag = 0;
constexpr const char* operation = "MpiStream";

/// Null, if there is no memory. On pages of 2 MiB: MPI copies between processes with process_vm_readv, which takes the
/// kernel half the time there.
std::byte* allocate(std::size_t bytes) {
  constexpr std::size_t page = 2 * 1024 * 1024;
  const std::size_t whole = (bytes + page - 1) / page * page;
  void* const memory = std::aligned_alloc(page, whole);
  if (memory) (void)::madvise(memory, whole, MADV_HUGEPAGE);  // the kernel may not have them
  return static_cast<std::byte*>(memory);
}

}  // namespace

MpiStream::MpiStream(MPI_Comm comm, int peer, const Options& options)
    : comm_(comm),
      peer_(peer),
      options_(options),
      memory_(allocate(2 * options.slots * options.slot_bytes)),
      sends_(options.slots, MPI_REQUEST_NULL),
      receives_(options.slots, MPI_REQUEST_NULL) {}

Result<std::unique_ptr<MpiStream>> MpiStream::open(MPI_Comm comm, int peer, const Options& options) {
  std::unique_ptr<MpiStream> stream(new MpiStream(comm, peer, options));
  if (!stream->memory_) {
    return Error(ErrorCode::no_space, operation)
        .reason("no memory for the messages of a peer")
        .object("rank " + std::to_string(peer))
        .wanted(ByteCount(2 * options.slots * options.slot_bytes));
  }
  for (std::uint64_t message = 0; message < options.slots; ++message) {
    if (!stream->receive(message)) {
      Error error = *stream->error_;
      (void)stream->close(Clock::steady().now());
      return error;
    }
  }
  return stream;
}

MpiStream::~MpiStream() {
  const auto is_null = [](MPI_Request request) { return request == MPI_REQUEST_NULL; };
  const bool at_rest = std::all_of(sends_.begin(), sends_.end(), is_null) &&
                       std::all_of(receives_.begin(), receives_.end(), is_null);
  // MPI writes to a slot that is received until its request ends, and that may be never, where the peer is gone.
  if (!at_rest) (void)memory_.release();
}

std::byte* MpiStream::send_slot(std::uint64_t message) const {
  return memory_.get() + message % options_.slots * options_.slot_bytes;
}

std::byte* MpiStream::receive_slot(std::uint64_t message) const {
  return memory_.get() + (options_.slots + message % options_.slots) * options_.slot_bytes;
}

/// False, with error_, if `call` has failed.
bool MpiStream::check(int status, const char* call) noexcept {
  if (status == MPI_SUCCESS) return true;
  if (!error_) {
    error_ = mpi_error(ErrorCode::peer_failed, operation, call, status)
                 .object("rank " + std::to_string(peer_))
                 .advice("look at that rank's error");
  }
  return false;
}

bool MpiStream::receive(std::uint64_t message) noexcept {
  MPI_Request& request = receives_[message % options_.slots];
  return check(MPI_Irecv(receive_slot(message), static_cast<int>(options_.slot_bytes), MPI_BYTE, peer_, tag,
                         comm_, &request),
               "MPI_Irecv");
}

bool MpiStream::is_finished(MPI_Request& request, MPI_Status* status) noexcept {
  int finished = 0;
  return check(MPI_Test(&request, &finished, status), "MPI_Test") && finished != 0;
}

void MpiStream::free_sent_slots() noexcept {
  while (sent_ < begun_ && is_finished(sends_[sent_ % options_.slots], MPI_STATUS_IGNORE)) ++sent_;
}

void MpiStream::send() noexcept {
  if (written_ == 0 || error_) return;
  MPI_Request& request = sends_[begun_ % options_.slots];
  if (!check(MPI_Isend(send_slot(begun_), static_cast<int>(written_), MPI_BYTE, peer_, tag, comm_, &request),
             "MPI_Isend"))
    return;
  ++begun_;
  written_ = 0;
}

bool MpiStream::can_write() noexcept {
  free_sent_slots();
  return error_ || begun_ - sent_ < options_.slots;
}

Result<std::size_t> MpiStream::write(ConstHostSpan bytes) {
  std::size_t taken = 0;
  const auto has_slot = [this] { return begun_ - sent_ < options_.slots || can_write(); };
  while (taken < bytes.size().value() && has_slot() && !error_) {
    const std::size_t count = std::min(options_.slot_bytes - written_, bytes.size().value() - taken);
    std::memcpy(send_slot(begun_) + written_, bytes.data() + taken, count);
    written_ += count;
    taken += count;
    if (written_ == options_.slot_bytes) send();
  }
  if (error_) return *error_;
  return taken;
}

bool MpiStream::can_read() noexcept {
  if (error_ || arrived_ > 0) return true;
  MPI_Status status;
  if (!is_finished(receives_[received_ % options_.slots], &status)) return error_.has_value();
  int count = 0;
  if (!check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count")) return true;
  arrived_ = static_cast<std::size_t>(count);
  if (arrived_ == 0) {
    has_ended_ = true;
    error_ = Error(ErrorCode::peer_failed, operation)
                 .reason("the peer has left")
                 .object("rank " + std::to_string(peer_))
                 .advice("look at that rank's error");
  }
  return true;
}

Result<std::size_t> MpiStream::read(HostSpan bytes) {
  std::size_t copied = 0;
  while (copied < bytes.size().value() && can_read() && !error_) {
    const std::size_t count = std::min(arrived_ - read_, bytes.size().value() - copied);
    std::memcpy(bytes.data() + copied, receive_slot(received_) + read_, count);
    copied += count;
    read_ += count;
    if (read_ < arrived_) break;
    arrived_ = read_ = 0;
    receive(received_);
    ++received_;
  }
  if (copied == 0 && error_) return *error_;
  return copied;
}

/// False, if not all of them have ended at `end`.
bool MpiStream::finish(std::span<MPI_Request> requests, TimePoint end) noexcept {
  while (true) {
    bool all = true;
    for (MPI_Request& request : requests) {
      int finished = 0;
      if (MPI_Test(&request, &finished, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
      all = all && finished != 0;
    }
    if (all || Clock::steady().now() >= end) return all;
    std::this_thread::yield();
  }
}

bool MpiStream::close(TimePoint end) noexcept {
  send();
  bool finished = finish(sends_, end);
  if (arrived_ == 0 && !error_) (void)can_read();
  if (!has_ended_) {  // else nobody is there who receives it
    MPI_Request ending = MPI_REQUEST_NULL;
    finished &= MPI_Isend(nullptr, 0, MPI_BYTE, peer_, tag, comm_, &ending) == MPI_SUCCESS &&
                finish({&ending, 1}, end);
  }
  for (MPI_Request& request : receives_) {
    if (request != MPI_REQUEST_NULL) finished &= MPI_Cancel(&request) == MPI_SUCCESS;
  }
  return finish(receives_, end) && finished;
}

}  // namespace penstock::zero
