// The functions of NCCL, and those by which tests control them.
#include "fake_nccl/world.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

using namespace penstock::test::fake_nccl;

namespace {

/// The group of the calling thread.
struct Group {
  int depth = 0;
  ncclComm_t comm = nullptr;
  ncclResult_t error = ncclSuccess;
};
thread_local Group group;

/// The frame of each function: `body` is called with the world. The error of a call on a communicator is its error.
template <class Body>
ncclResult_t call(const char* function, ncclComm_t comm, const Body& body) {
  World& world = World::instance();
  std::unique_lock lock(world.mutex);
  ++world.counts[function];
  if (comm != nullptr) {
    if (comm->gone) {
      world.violate(std::string(function) + " on a communicator that is gone");
      return ncclInvalidArgument;
    }
    if (comm->busy)
      world.violate(std::string(function) + " while another thread is in a call on the communicator");
    comm->busy = true;
  }
  if (world.held == function) {
    world.held.clear();
    world.is_held = true;
    world.changed.notify_all();
    world.changed.wait(lock, [&] { return !world.is_held; });
  } else {
    lock.unlock();
    std::this_thread::yield();  // so that the calls of two threads meet
    lock.lock();
  }
  const auto failing = world.failing.find(std::string_view(function));
  ncclResult_t result = ncclSuccess;
  if (failing != world.failing.end() && --failing->second.first == 0) {
    result = failing->second.second;
    world.failing.erase(failing);
    if (comm != nullptr) (void)world.fail(*comm, result, "injected");
  } else {
    result = body(world, lock);
  }
  if (comm != nullptr) comm->busy = false;
  return result;
}

/// ncclSuccess if calls are allowed.
ncclResult_t ready(World& world, ncclComm& comm) {
  if (comm.async == ncclInProgress) {
    return world.fail(comm, ncclInvalidArgument,
                      "Attempt to use communicator before the previous operation returned ncclSuccess");
  }
  if (comm.async == ncclSuccess && comm.stage != Stage::ready) {
    return world.fail(comm, ncclInvalidArgument, "the communicator is finalised");
  }
  return comm.async;
}

ncclResult_t check(World& world, ncclComm& comm, const Task& task) {
  const bool sends = task.kind == Task::Kind::send, receives = task.kind == Task::Kind::receive;
  if (task.count > 0 && ((task.from == nullptr && !receives) || (task.to == nullptr && !sends))) {
    return world.fail(comm, ncclInvalidArgument, "a buffer is null");
  }
  if (!task.is_collective() && (task.peer < 0 || task.peer >= comm.clique->ranks())) {
    return world.fail(comm, ncclInvalidArgument, "peer " + std::to_string(task.peer) + " does not exist");
  }
  const bool averages = task.kind == Task::Kind::reduce_scatter;
  if (averages && (task.op != ncclAvg ||
                   (task.type != ncclFloat16 && task.type != ncclBfloat16 && task.type != ncclFloat32))) {
    return world.fail(comm, ncclInvalidArgument,
                      "not modelled: an operation but ncclAvg of bf16, fp16 or fp32");
  }
  return ncclSuccess;
}

/// Begins to launch the communicator's tasks.
ncclResult_t launch(World& world, ncclComm& comm) {
  for (const Task& task : comm.launch) comm.connects[task.is_collective()] = true;
  world.begin(comm, Stage::launching);
  return ncclInProgress;
}

/// After an error of the group.
void give_up(ncclComm& comm, ncclResult_t error) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  comm.launch.clear();
  (void)world.fail(comm, error, "a call of the group has failed");
}

ncclResult_t add(const char* function, ncclComm_t comm, const Task& task) {
  const ncclResult_t result = call(function, comm, [&](World& world, auto&) {
    if (const ncclResult_t refused = ready(world, *comm); refused != ncclSuccess) return refused;
    if (const ncclResult_t refused = check(world, *comm, task); refused != ncclSuccess) return refused;
    if (group.depth > 0 && group.comm != nullptr && group.comm != comm) {
      world.violate("not modelled: a group of several communicators");
      return ncclInvalidUsage;
    }
    if (!comm->launch.empty() && comm->launch[0].stream != task.stream) {
      world.violate("not modelled: a group on several streams");
      return ncclInvalidUsage;
    }
    comm->launch.push_back(task);
    if (group.depth == 0) return launch(world, *comm);
    group.comm = comm;
    return ncclSuccess;
  });
  if (group.depth > 0 && result != ncclSuccess) group.error = result;
  return result;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  return call("ncclGetVersion", nullptr, [&](World& world, auto&) {
    *version = world.options.version;
    return ncclSuccess;
  });
}

const char* ncclGetErrorString(ncclResult_t result) {
  constexpr const char* texts[] = {"no error",
                                   "unhandled cuda error",
                                   "unhandled system error",
                                   "internal error",
                                   "invalid argument",
                                   "invalid usage",
                                   "remote process exited or there was a network error",
                                   "NCCL operation in progress"};
  return result < ncclNumResults ? texts[result] : "unknown result code";
}

const char* ncclGetLastError(ncclComm_t comm) {
  return comm == nullptr ? "" : comm->last_error.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return call("ncclGetUniqueId", nullptr, [&](World& world, auto&) {
    const std::string text = "fake " + std::to_string(world.next_id++);
    *id = {};
    std::memcpy(id->internal, text.data(), text.size());
    world.cliques[text] = nullptr;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return call("ncclCommInitRankConfig", nullptr, [&](World& world, auto&) {
    if (comm == nullptr || ranks < 1 || rank < 0 || rank >= ranks) return ncclInvalidArgument;
    *comm = nullptr;
    if (config == nullptr || config->magic != 0xcafebeef || config->blocking != 0) {
      world.violate("not modelled: blocking communicators");
      return ncclInvalidArgument;
    }
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess) return ncclUnhandledCudaError;
    const auto found = world.cliques.find(id.internal);
    if (found == world.cliques.end()) return ncclSystemError;  // nobody listens there
    auto& clique = found->second;
    if (clique == nullptr) {
      clique = std::make_shared<Clique>();
      clique->members.resize(static_cast<std::size_t>(ranks));
    }
    if (clique->ranks() != ranks || clique->members[static_cast<std::size_t>(rank)] != nullptr) {
      return ncclSystemError;  // the id has made its communicator, or makes another one
    }
    world.comms.push_back(std::make_unique<ncclComm>());
    *comm = world.comms.back().get();
    (*comm)->clique = clique;
    (*comm)->rank = rank;
    (*comm)->device = device;
    clique->members[static_cast<std::size_t>(rank)] = *comm;
    world.begin(**comm, Stage::initialising);
    return ncclInProgress;
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return call("ncclCommGetAsyncError", comm, [&](World& world, auto&) {
    world.look(*comm);
    *error = comm->async;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return call("ncclCommFinalize", comm, [&](World& world, auto&) {
    if (const ncclResult_t refused = ready(world, *comm); refused != ncclSuccess) return refused;
    world.begin(*comm, Stage::finalising);
    return ncclInProgress;
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return call("ncclCommDestroy", comm, [&](World& world, auto& lock) {
    if (comm->async == ncclInProgress) return ready(world, *comm);
    while (*comm->kernels > 0 && !comm->aborted) world.changed.wait_for(lock, std::chrono::milliseconds(1));
    comm->gone = true;
    if (comm->window.registered) world.violate("a communicator is destroyed with a window");
    return ncclSuccess;
  });
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return call("ncclCommAbort", comm, [&](World& world, auto&) {
    comm->aborted = comm->gone = true;
    world.enqueue_the_rest(*comm);
    world.changed.notify_all();
    return ncclSuccess;
  });
}

ncclResult_t ncclMemAlloc(void** memory, size_t size) {
  return call("ncclMemAlloc", nullptr, [&](World& world, auto&) {
    if (cudaMalloc(memory, size) != cudaSuccess) return ncclUnhandledCudaError;
    world.arenas[static_cast<std::byte*>(*memory)] = size;
    return ncclSuccess;
  });
}

ncclResult_t ncclMemFree(void* memory) {
  return call("ncclMemFree", nullptr, [&](World& world, auto&) {
    if (world.arenas.erase(static_cast<std::byte*>(memory)) == 0) {
      world.violate("ncclMemFree of memory that ncclMemAlloc has not allocated");
      return ncclInvalidArgument;
    }
    const auto registered = std::ranges::find_if(
        world.comms, [&](const auto& one) { return !one->gone && one->window.contains(memory); });
    if (registered != world.comms.end()) world.violate("ncclMemFree of memory that is registered");
    return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
  });
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* memory, size_t size, ncclWindow_t* window,
                                    int flags) {
  return call("ncclCommWindowRegister", comm, [&](World& world, auto&) {
    if (const ncclResult_t refused = ready(world, *comm); refused != ncclSuccess) return refused;
    *window = nullptr;
    if (!world.options.windows) return ncclSuccess;
    const auto arena = world.arenas.find(static_cast<std::byte*>(memory));
    if (arena == world.arenas.end() || size > arena->second || flags != NCCL_WIN_COLL_SYMMETRIC ||
        comm->window.begin != nullptr) {
      world.violate("not modelled: a window but one of memory of ncclMemAlloc, symmetric");
      return ncclInvalidArgument;
    }
    comm->window = {.begin = arena->first, .size = size, .handle = window};
    world.begin(*comm, Stage::registering);
    return ncclInProgress;
  });
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  return call("ncclCommWindowDeregister", comm, [&](World& world, auto&) {
    if (const ncclResult_t refused = ready(world, *comm); refused != ncclSuccess) return refused;
    if (window != reinterpret_cast<ncclWindow_t>(comm)) return ncclInvalidArgument;
    if (*comm->kernels > 0) world.violate("a window is deregistered while kernels run");
    comm->window = {};
    return ncclSuccess;
  });
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return add("ncclAllGather", comm,
             {.kind = Task::Kind::all_gather,
              .from = from,
              .to = to,
              .count = count,
              .type = type,
              .stream = stream});
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return add("ncclReduceScatter", comm,
             {.kind = Task::Kind::reduce_scatter,
              .from = from,
              .to = to,
              .count = count,
              .type = type,
              .op = op,
              .stream = stream});
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add(
      "ncclSend", comm,
      {.kind = Task::Kind::send, .from = from, .count = count, .type = type, .peer = peer, .stream = stream});
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add(
      "ncclRecv", comm,
      {.kind = Task::Kind::receive, .to = to, .count = count, .type = type, .peer = peer, .stream = stream});
}

ncclResult_t ncclGroupStart() {
  return call("ncclGroupStart", nullptr, [](World&, auto&) {
    ++group.depth;
    return ncclSuccess;
  });
}

ncclResult_t ncclGroupEnd() {
  const Group ended = group;
  const ncclResult_t result = call("ncclGroupEnd", nullptr, [&](World& world, auto&) {
    if (ended.depth == 0) return ncclInvalidUsage;
    if (ended.depth > 1 || ended.error != ncclSuccess || ended.comm == nullptr) return ended.error;
    return launch(world, *ended.comm);
  });
  if (ended.depth > 1) {
    --group.depth;
  } else {
    group = {};
    if (result != ncclInProgress && ended.comm != nullptr) give_up(*ended.comm, result);
  }
  return result;
}

}  // extern "C"

namespace penstock::test::fake_nccl {

void restart(const Options& options) {
  World::instance().restart(options);
}

std::vector<std::string> take_violations() {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  return std::exchange(world.violations, {});
}

std::size_t live() {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  return static_cast<std::size_t>(
      std::ranges::count_if(world.comms, [](const auto& one) { return !one->gone; }));
}

std::uint64_t calls(std::string_view function) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  const auto found = world.counts.find(function);
  return found == world.counts.end() ? 0 : found->second;
}

std::uint64_t collectives_in_windows() {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  return world.in_windows;
}

void fail_call(std::string_view function, std::uint64_t nth, ncclResult_t error) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  world.failing[std::string(function)] = {nth, error};
}

void report(int rank, ncclResult_t error) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  for (const auto& comm : world.comms) {
    if (comm->rank == rank && !comm->gone) (void)world.fail(*comm, error, "reported by the test");
  }
}

Hold::Hold(std::string function) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  world.held = std::move(function);
}
Hold::~Hold() {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  world.held.clear();
  world.is_held = false;
  world.changed.notify_all();
}
void Hold::wait_for_call() {
  World& world = World::instance();
  std::unique_lock lock(world.mutex);
  world.changed.wait(lock, [&] { return world.is_held; });
}

}  // namespace penstock::test::fake_nccl
