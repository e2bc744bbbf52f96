#pragma once

#include "fake_nccl/fake_nccl.hpp"
#include "kit/seeded_random.hpp"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

namespace penstock::test::fake_nccl {

/// One collective, send or receive of one rank.
struct Task {
  enum class Kind : std::uint8_t { all_gather, reduce_scatter, send, receive };
  Kind kind{};
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t count = 0;  ///< elements of a slot
  ncclDataType_t type{};
  ncclRedOp_t op{};
  int peer = -1;
  cudaStream_t stream = nullptr;

  [[nodiscard]] bool is_collective() const { return kind <= Kind::reduce_scatter; }
  [[nodiscard]] std::size_t bytes() const;
  [[nodiscard]] std::string text() const;
  [[nodiscard]] bool same(const Task& other) const {
    return kind == other.kind && count == other.count && type == other.type && op == other.op;
  }
};

struct Clique;

/// What a communicator is doing.
enum class Stage : std::uint8_t { initialising, ready, registering, launching, finalising, finalised };

/// Memory that a rank has registered, or registers.
struct Window {
  std::byte* begin = nullptr;
  std::size_t size = 0;
  ncclWindow_t* handle = nullptr;  ///< set when it is registered
  bool registered = false;

  [[nodiscard]] bool contains(const void* address) const {
    return begin != nullptr && !std::less<>()(static_cast<const std::byte*>(address), begin) &&
           std::less<>()(static_cast<const std::byte*>(address), begin + size);
  }
};

/// Kernels that were enqueued and have not ended. Counted without a lock, because a stream that fails drops them.
using Kernels = std::shared_ptr<std::atomic<int>>;

}  // namespace penstock::test::fake_nccl

/// A communicator of one rank. World::mutex guards it.
struct ncclComm {
  std::shared_ptr<penstock::test::fake_nccl::Clique> clique;
  int rank = 0, device = 0;
  penstock::test::fake_nccl::Stage stage{};
  ncclResult_t async = ncclInProgress;
  std::string last_error;
  std::vector<penstock::test::fake_nccl::Task> launch;  ///< what is to be enqueued
  int looks_left = 0;                                   ///< until what is in progress may be done
  std::size_t collectives = 0;                          ///< enqueued so far
  bool connects[2] = {};  ///< has begun its first send or receive; its first collective
  penstock::test::fake_nccl::Window window;
  bool busy = false;                   ///< a call is under way
  bool aborted = false, gone = false;  ///< gone: aborted or destroyed
  penstock::test::fake_nccl::Kernels kernels = std::make_shared<std::atomic<int>>(0);
};

namespace penstock::test::fake_nccl {

/// A collective of all ranks, the same number on each.
struct Collective {
  std::vector<std::optional<Task>> arrived;
  bool broken = false, done = false;
};

/// A send or receive on its rank's stream.
struct Part {
  Task task;
  bool done = false;
};

/// The sends and receives from one rank to another, in their order.
struct Channel {
  std::deque<std::shared_ptr<Part>> sends, receives;
  bool broken = false;
};

/// The communicators of all ranks that one id made.
struct Clique {
  std::vector<ncclComm*> members;
  std::vector<Collective> collectives;
  std::map<std::pair<int, int>, Channel> channels;  ///< by sender and receiver

  [[nodiscard]] int ranks() const { return static_cast<int>(members.size()); }
  [[nodiscard]] bool complete() const;
  [[nodiscard]] bool all_connect(bool collective) const;
  [[nodiscard]] bool has_lost_a_member() const;
  [[nodiscard]] bool all_finalise() const;
  [[nodiscard]] bool all_register() const;
  /// Whether what a collective reads or writes is at the same offset of every rank's window, or in none.
  [[nodiscard]] bool is_symmetric(const Collective& collective) const;
  Collective& collective(std::size_t number);
};

/// The state of the library; one of a process. Members are guarded by `mutex`, under which the fake CUDA runtime is
/// called, and which it does not take.
class World {
 public:
  static World& instance();

  void restart(const Options& options);
  /// Advances what a communicator is doing, as a thread of NCCL would.
  void look(ncclComm& comm);
  void violate(std::string what) { violations.push_back(std::move(what)); }
  ncclResult_t fail(ncclComm& comm, ncclResult_t error, std::string why);

  std::mutex mutex;
  std::condition_variable changed;
  Options options;
  std::optional<SeededRandom> random;
  std::vector<std::unique_ptr<ncclComm>> comms;            ///< those that are gone too
  std::map<std::string, std::shared_ptr<Clique>> cliques;  ///< by id; null before the first rank comes
  std::uint64_t next_id = 0;
  std::map<std::byte*, std::size_t> arenas;  ///< of ncclMemAlloc
  std::uint64_t in_windows = 0;              ///< collectives
  std::vector<std::string> violations;
  std::map<std::string, std::uint64_t, std::less<>> counts;
  std::map<std::string, std::pair<std::uint64_t, ncclResult_t>, std::less<>>
      failing;       ///< calls left before it
  std::string held;  ///< function, or none
  bool is_held = false;

  /// What an abort finds on the way to the stream still gets there, where it ends at once.
  void enqueue_the_rest(ncclComm& comm);
  /// Lets a communicator take some looks for what it begins.
  void begin(ncclComm& comm, Stage stage);

 private:
  void initialise(ncclComm& comm);
  void enqueue(ncclComm& comm);
};

/// The body of a kernel: waits until the collective, or all of the sends and receives, have run, or `comm` is aborted.
void run_collective(ncclComm& comm, const Task& task, std::size_t number);
void run_parts(ncclComm& comm, const std::vector<Task>& tasks);

/// Moves the bytes of a collective in which all ranks have arrived. Returns what is wrong with the memory, if anything.
[[nodiscard]] std::string move_collective(const std::vector<std::optional<Task>>& ranks);
/// Copies from a send to its receive.
[[nodiscard]] std::string move_part(const Task& send, const Task& receive);
/// Writes what an aborted kernel may leave behind.
[[nodiscard]] std::string spoil(const Task& task, int rank, int ranks);

}  // namespace penstock::test::fake_nccl
