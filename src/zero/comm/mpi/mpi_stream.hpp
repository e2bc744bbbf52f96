#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/base/time.hpp>

#include <mpi.h>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock::zero {

/// The bytes between this process and one other, as messages of MPI.
///
/// What is written is collected in a slot. The slot becomes a message when it is full, or with send(): a header and the
/// chunk after it travel together. Received messages wait in slots until they are read. An empty message says that its
/// sender closes the stream.
///
/// Used by one thread. Nothing blocks but close(). MPI makes progress only inside of its calls, so somebody has to call
/// until everything has arrived.
class MpiStream {
 public:
  struct Options {
    std::size_t slot_bytes = 0;  ///< equal at both ends
    std::size_t slots = 0;       ///< for each direction
  };

  /// `comm` returns errors and outlives the stream. Errors: peer_failed, with the error of MPI; no_space.
  [[nodiscard]] static Result<std::unique_ptr<MpiStream>> open(MPI_Comm comm, int peer,
                                                               const Options& options);
  /// Leaks the memory that MPI may still use: all of it, where close() was not called or has returned false.
  ~MpiStream();
  MpiStream(const MpiStream&) = delete;
  MpiStream& operator=(const MpiStream&) = delete;

  /// As in PeerPipes.
  [[nodiscard]] Result<std::size_t> write(ConstHostSpan bytes);
  [[nodiscard]] Result<std::size_t> read(HostSpan bytes);
  /// Begins to send what was written, if it has not begun.
  void send() noexcept;

  /// write() takes a byte or returns an error. Lets MPI make progress, if something is being sent.
  [[nodiscard]] bool can_write() noexcept;
  /// Likewise for read(). Lets MPI make progress, if nothing has arrived.
  [[nodiscard]] bool can_read() noexcept;

  /// Sends what was written, and that this is all, and gives up what the peer sends. Returns at `end` of the steady
  /// clock at the latest; false, if MPI may still use memory of the stream. Call it once, and nothing afterwards.
  [[nodiscard]] bool close(TimePoint end) noexcept;

 private:
  MpiStream(MPI_Comm comm, int peer, const Options& options);

  [[nodiscard]] std::byte* send_slot(std::uint64_t message) const;
  [[nodiscard]] std::byte* receive_slot(std::uint64_t message) const;
  bool receive(std::uint64_t message) noexcept;
  [[nodiscard]] bool is_finished(MPI_Request& request, MPI_Status* status) noexcept;
  void free_sent_slots() noexcept;
  bool check(int status, const char* call) noexcept;
  [[nodiscard]] static bool finish(std::span<MPI_Request> requests, TimePoint end) noexcept;

  const MPI_Comm comm_;
  const int peer_;
  const Options options_;
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;  // the slots that are sent, then those that are received
  std::vector<MPI_Request> sends_, receives_;
  std::uint64_t begun_ = 0, sent_ = 0;  // messages; those between are being sent
  std::size_t written_ = 0;             // bytes in the slot of message number begun_
  std::uint64_t received_ = 0;          // messages that were read completely
  std::size_t arrived_ = 0, read_ = 0;  // bytes of the message after them, once it has arrived
  bool has_ended_ = false;              // by the peer
  std::optional<Error> error_;
};

}  // namespace penstock::zero
