#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// NCCL for tests on machines without a GPU: a shared library with its functions, on the fake CUDA runtime of the
/// program that loads it (tests/fake_cuda). The ranks of a communicator are in one process, each on a device of its
/// own; one thread or several drive them, since all communicators are non-blocking.
///
/// Modelled, with the section of NVIDIA's documentation (NCCL 2.28):
///
/// - A call on a communicator returns ncclInProgress, and ncclCommGetAsyncError does until what it began is done: the
///   initialisation when all ranks have come, a collective when it is on its stream, which happens while nobody
///   looks or as late as in the last look ("Creating a communication with options", "Nonblocking Group Operation").
///   The first collective, and the first send or receive, of a communicator connect to the peers: they are in progress
///   until every rank has begun its first. Other calls on a communicator that is in progress are ncclInvalidArgument,
///   and stay its error.
/// - A collective runs when the streams of all ranks have got there; a stream waits for the others ("CUDA Stream
///   Semantics"). Sends and receives of a group run together ("Point-to-point communication").
/// - In place are an all-gather whose input is its slot of the output, and a reduce-scatter whose output is its slot of
///   the input ("In-place Operations").
/// - ncclAvg: every rank's value is multiplied with 1/ranks, both rounded to the type; slot r is added from rank r + 1
///   round to rank r, and rounded to the type after each addition. That is the ring of NCCL 2.28.9 with one channel;
///   NVIDIA documents no order, and NCCL chooses among several.
/// - Two ranks on one device are ncclInvalidUsage on all ranks ("Creating a Communicator").
/// - A communicator that a rank has aborted or destroyed: its peers' collectives do not end, and ncclCommGetAsyncError
///   says ncclRemoteError or nothing, as the test chooses ("Asynchronous errors and error handling").
/// - ncclCommAbort ends kernels in flight, which may take until after the call; what they were to write is undefined
///   ("ncclCommAbort"). One that was in progress still gets on its stream, if the peers are connected.
/// - Memory of ncclMemAlloc that all ranks register as a symmetric window, of the same size, one a communicator: NCCL
///   has done so when all ranks have come; ncclCommAbort ends it ("Window Registration"). Without Options::windows the
///   window is null, as on GPUs that cannot access each other's memory.
/// - ncclCommFinalize is done when all collectives are, and all ranks have called it: "globally quiescent"
///   ("ncclCommFinalize"). An id makes one communicator ("ncclGetUniqueId").
///
/// What NCCL does not notice is reported as a violation, and hangs until the communicator is aborted, as it may there:
/// collectives in another order or of other sizes on some ranks, sends that do not fit their receives. Violations
/// without a hang: calls on one communicator by two threads at a time ("Thread Safety"), calls on one that is gone,
/// memory that a collective uses after it was freed, collectives at different offsets of the ranks' windows, a window
/// that outlives its memory or is left at ncclCommDestroy.
///
/// Not modelled: blocking communicators, several streams or communicators in a group, graphs, split, other
/// registrations, averages of other types, and the functions that the library does not call.
namespace penstock::test::fake_nccl {

struct Options {
  int version = NCCL_VERSION_CODE;
  /// Whether ncclCommGetAsyncError returns ncclRemoteError when a peer has aborted or destroyed its communicator.
  bool lost_peers_show = false;
  /// Whether memory can be registered.
  bool windows = true;
  /// Chooses how many looks it takes until something is done. Without one, as few as possible.
  std::optional<std::uint64_t> seed;
};

/// Aborts all communicators, waits for the end of their kernels, forgets everything, and starts with these options. No
/// other thread is in an NCCL call. Call it before fake_cuda::restart(), which waits for the streams.
void restart(const Options& options = {});

/// What was done that NCCL forbids; empties the list.
[[nodiscard]] std::vector<std::string> take_violations();
/// Communicators that were created and neither aborted nor destroyed.
[[nodiscard]] std::size_t live();
/// The number of calls of a function since restart().
[[nodiscard]] std::uint64_t calls(std::string_view function);

/// The number of collectives, since restart(), of memory that is registered.
[[nodiscard]] std::uint64_t collectives_in_windows();

/// The `nth` call of `function` from now, counted from 1, does nothing and returns `error`, which becomes the error of
/// the communicator, if it has one.
void fail_call(std::string_view function, std::uint64_t nth, ncclResult_t error);
/// The error of the living communicators of `rank` becomes `error`, as one that a thread of NCCL finds.
void report(int rank, ncclResult_t error);

/// The next call of a function waits inside until this is destroyed.
class Hold {
 public:
  explicit Hold(std::string function);
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold();
  /// Blocks until a call waits.
  void wait_for_call();
};

}  // namespace penstock::test::fake_nccl
