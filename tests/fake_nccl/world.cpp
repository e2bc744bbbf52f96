#include "fake_nccl/world.hpp"

#include "fake_cuda/fake_cuda.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace penstock::test::fake_nccl {

namespace {

/// Counts a kernel until the stream has run or dropped it.
class KernelCount {
 public:
  explicit KernelCount(Kernels kernels) : kernels_(std::move(kernels)) { ++*kernels_; }
  KernelCount(const KernelCount&) = delete;
  KernelCount& operator=(const KernelCount&) = delete;
  ~KernelCount() { --*kernels_; }

 private:
  const Kernels kernels_;
};

}  // namespace

bool Clique::complete() const {
  return std::ranges::all_of(members, [](const ncclComm* one) { return one != nullptr && !one->gone; });
}
bool Clique::all_connect(bool collective) const {
  return std::ranges::all_of(members, [&](const ncclComm* one) { return one->connects[collective]; });
}
bool Clique::has_lost_a_member() const {
  return std::ranges::any_of(members, [](const ncclComm* one) {
    return one != nullptr && one->gone && one->stage != Stage::finalised;
  });
}
bool Clique::all_finalise() const {
  return std::ranges::all_of(members, [](const ncclComm* one) {
    return one->gone ||
           ((one->stage == Stage::finalising || one->stage == Stage::finalised) && *one->kernels == 0);
  });
}
bool Clique::all_register() const {
  return std::ranges::all_of(members, [this](const ncclComm* one) {
    return one->window.begin != nullptr && one->window.size == members[0]->window.size;
  });
}
bool Clique::is_symmetric(const Collective& collective) const {
  const auto offset = [&](std::size_t r, auto address) -> std::ptrdiff_t {
    const std::byte* const at = static_cast<const std::byte*>((*collective.arrived[r]).*address);
    return members[r]->window.contains(at) ? at - members[r]->window.begin : -1;
  };
  for (std::size_t r = 1; r < members.size(); ++r) {
    // The one that is the slot of its rank is not compared.
    const bool gathers = collective.arrived[r]->kind == Task::Kind::all_gather;
    if (gathers ? offset(r, &Task::to) != offset(0, &Task::to)
                : offset(r, &Task::from) != offset(0, &Task::from))
      return false;
  }
  return true;
}
Collective& Clique::collective(std::size_t number) {
  while (collectives.size() <= number) collectives.push_back({.arrived = {members.size(), std::nullopt}});
  return collectives[number];
}

World& World::instance() {
  static World* const world = new World;
  return *world;
}

void World::restart(const Options& wanted) {
  std::unique_lock lock(mutex);
  for (const auto& comm : comms) comm->aborted = comm->gone = true;
  changed.notify_all();
  const auto idle = [this] {
    return std::ranges::all_of(comms, [](const auto& one) { return *one->kernels == 0; });
  };
  while (!idle()) changed.wait_for(lock, std::chrono::milliseconds(1));
  comms.clear();
  cliques.clear();
  violations.clear();
  counts.clear();
  failing.clear();
  arenas.clear();
  in_windows = 0;
  options = wanted;
  random.reset();
  if (wanted.seed) random.emplace(*wanted.seed);
}

ncclResult_t World::fail(ncclComm& comm, ncclResult_t error, std::string why) {
  comm.last_error = std::move(why);
  return comm.async = error;
}

void World::begin(ncclComm& comm, Stage stage) {
  comm.stage = stage;
  comm.async = ncclInProgress;
  comm.looks_left = random ? static_cast<int>(random->below(4)) : 0;
}

namespace {

/// The peers of what is to be enqueued.
bool connected(const ncclComm& comm) {
  return std::ranges::all_of(
      comm.launch, [&](const Task& task) { return comm.clique->all_connect(task.is_collective()); });
}

}  // namespace

void World::enqueue_the_rest(ncclComm& comm) {
  if (comm.stage == Stage::launching && comm.async == ncclInProgress && connected(comm)) enqueue(comm);
}

void World::look(ncclComm& comm) {
  if (options.lost_peers_show && comm.clique->has_lost_a_member() &&
      (comm.async == ncclSuccess || comm.async == ncclInProgress)) {
    (void)fail(comm, ncclRemoteError, "a peer has closed its connection");
  }
  if (comm.async != ncclInProgress) return;
  if (comm.stage == Stage::initialising) return initialise(comm);
  if (comm.stage == Stage::registering && !comm.clique->all_register()) return;
  if (comm.stage == Stage::finalising && !comm.clique->all_finalise()) return;
  if (comm.stage == Stage::launching && !connected(comm)) return;
  if (comm.looks_left-- > 0) return;
  if (comm.stage == Stage::launching) return enqueue(comm);
  if (comm.stage == Stage::registering) {
    comm.window.registered = true;
    *comm.window.handle = reinterpret_cast<ncclWindow_t>(&comm);
    comm.stage = Stage::ready;
    comm.async = ncclSuccess;
    return;
  }
  comm.stage = Stage::finalised;
  comm.async = ncclSuccess;
}

void World::initialise(ncclComm& comm) {
  const Clique& clique = *comm.clique;
  if (!clique.complete() || comm.looks_left-- > 0) return;
  for (const ncclComm* one : clique.members) {
    if (one == &comm || one->device != comm.device) continue;
    (void)fail(comm, ncclInvalidUsage,
               "Duplicate GPU detected : rank " + std::to_string(comm.rank) + " and rank " +
                   std::to_string(one->rank) + " both on CUDA device " + std::to_string(comm.device));
    return;
  }
  comm.stage = Stage::ready;
  comm.async = ncclSuccess;
}

void World::enqueue(ncclComm& comm) {
  comm.stage = Stage::ready;
  comm.async = ncclSuccess;
  std::vector<Task> parts;
  const auto launch = [&](cudaStream_t stream, std::function<void()> kernel) {
    auto count = std::make_shared<KernelCount>(comm.kernels);
    const cudaError_t error =
        fake_cuda::enqueue(stream, [count = std::move(count), run = std::move(kernel)] { run(); });
    if (error != cudaSuccess) (void)fail(comm, ncclUnhandledCudaError, cudaGetErrorString(error));
  };
  for (const Task& task : comm.launch) {
    if (task.is_collective()) {
      launch(task.stream, [&comm, task, number = comm.collectives++] { run_collective(comm, task, number); });
    } else {
      parts.push_back(task);
    }
  }
  if (!parts.empty()) launch(parts[0].stream, [&comm, parts] { run_parts(comm, parts); });
  comm.launch.clear();
}

namespace {

/// At the end of an aborted kernel.
void leave_behind(World& world, const ncclComm& comm, const Task& task) {
  if (auto wrong = spoil(task, comm.rank, comm.clique->ranks()); !wrong.empty())
    world.violate(std::move(wrong));
}

}  // namespace

void run_collective(ncclComm& comm, const Task& task, std::size_t number) {
  World& world = World::instance();
  std::unique_lock lock(world.mutex);
  if (comm.aborted) return leave_behind(world, comm, task);
  auto& ranks = comm.clique->collective(number).arrived;
  ranks[static_cast<std::size_t>(comm.rank)] = task;
  const auto differs = std::ranges::find_if(ranks, [&](const auto& one) { return one && !one->same(task); });
  if (differs != ranks.end()) {
    world.violate("rank " + std::to_string(comm.rank) + " runs " + task.text() + ", and rank " +
                  std::to_string(differs - ranks.begin()) + " " + (*differs)->text());
    comm.clique->collective(number).broken = true;
  }
  if (!comm.clique->collective(number).broken &&
      std::ranges::all_of(ranks, &std::optional<Task>::has_value)) {
    if (comm.window.contains(task.from)) ++world.in_windows;
    if (!comm.clique->is_symmetric(comm.clique->collective(number)))
      world.violate("a " + task.text() + " is not at the same offset of all ranks' windows");
    if (auto wrong = move_collective(ranks); !wrong.empty()) world.violate(std::move(wrong));
    comm.clique->collective(number).done = true;
    world.changed.notify_all();
  }
  // By number: other kernels add collectives.
  world.changed.wait(lock, [&] { return comm.clique->collective(number).done || comm.aborted; });
  if (comm.clique->collective(number).done) return;
  comm.clique->collective(number).broken = true;
  if (auto wrong = spoil(task, comm.rank, comm.clique->ranks()); !wrong.empty())
    world.violate(std::move(wrong));
}

namespace {

/// Runs the sends of a channel that have met their receives.
void match(World& world, Channel& channel) {
  while (!channel.broken && !channel.sends.empty() && !channel.receives.empty()) {
    Part &send = *channel.sends.front(), &receive = *channel.receives.front();
    if (send.task.bytes() != receive.task.bytes() || send.task.type != receive.task.type) {
      world.violate("a " + send.task.text() + " meets a " + receive.task.text());
      channel.broken = true;
      return;
    }
    if (auto wrong = move_part(send.task, receive.task); !wrong.empty()) world.violate(std::move(wrong));
    send.done = receive.done = true;
    channel.sends.pop_front();
    channel.receives.pop_front();
  }
}

}  // namespace

void run_parts(ncclComm& comm, const std::vector<Task>& tasks) {
  World& world = World::instance();
  std::unique_lock lock(world.mutex);
  std::vector<std::pair<Channel*, std::shared_ptr<Part>>> mine;
  for (const Task& task : tasks) {
    const bool sends = task.kind == Task::Kind::send;
    Channel& channel =
        comm.clique->channels[sends ? std::pair(comm.rank, task.peer) : std::pair(task.peer, comm.rank)];
    auto part = std::make_shared<Part>(Part{.task = task});
    (sends ? channel.sends : channel.receives).push_back(part);
    mine.emplace_back(&channel, std::move(part));
  }
  if (!comm.aborted) {
    for (const auto& [channel, part] : mine) match(world, *channel);
  }
  world.changed.notify_all();
  world.changed.wait(lock, [&] {
    return comm.aborted || std::ranges::all_of(mine, [](const auto& one) { return one.second->done; });
  });
  for (const auto& [channel, part] : mine) {
    if (part->done) continue;
    channel->broken = true;
    leave_behind(world, comm, part->task);
  }
}

}  // namespace penstock::test::fake_nccl
