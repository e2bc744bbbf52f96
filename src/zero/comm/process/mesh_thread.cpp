#include "zero/comm/process/mesh_thread.hpp"

#include "base/start_thread.hpp"

#include <chrono>
#include <utility>

namespace penstock::zero {

Result<std::unique_ptr<MeshThread>> MeshThread::start(std::unique_ptr<PeerMesh> mesh) {
  auto self = std::unique_ptr<MeshThread>(new MeshThread(std::move(mesh)));
  PENSTOCK_TRY_ASSIGN(self->thread_,
                      start_thread("ProcessGroup::connect", "the collectives between processes",
                                   [thread = self.get()] { thread->run(); }));
  return self;
}

void MeshThread::begin(std::vector<LinkOperation> operations) {
  {
    const std::lock_guard lock(mutex_);
    wanted_ = std::move(operations);
    status_.done = false;
  }
  if (mesh_) mesh_->wake();
}

void MeshThread::interrupt(std::uint64_t epoch) {
  {
    const std::lock_guard lock(mutex_);
    wanted_.reset();
    wanted_epoch_ = epoch;
    status_.done = true;
    status_.interrupted = true;
  }
  if (mesh_) mesh_->wake();
}

PeerExchange::Status MeshThread::poll() {
  const std::lock_guard lock(mutex_);
  return status_;
}

void MeshThread::set_wake(std::function<void()> wake) {
  const std::lock_guard lock(wake_mutex_);
  wake_ = std::move(wake);
}

void MeshThread::stop() noexcept {
  if (!thread_.joinable()) return;
  set_wake({});
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  mesh_->wake();
  thread_.join();
  mesh_.reset();
}

void MeshThread::run() {
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (stops_) return;
      obey();
    }
    const auto moved = mesh_->advance();
    const bool rests = !moved || !*moved;
    publish(moved ? std::nullopt : std::optional(moved.error()), rests);
    if (rests) mesh_->wait(std::chrono::hours(1));
  }
}

/// Called with the lock held.
void MeshThread::obey() {
  // The interruption first: what was begun before it is dropped by interrupt().
  if (const auto epoch = std::exchange(wanted_epoch_, std::nullopt)) mesh_->interrupt(*epoch);
  if (const auto operations = std::exchange(wanted_, std::nullopt)) (void)mesh_->begin(*operations);
}

void MeshThread::publish(const std::optional<Error>& error, bool rests) {
  bool news = false;
  {
    const std::lock_guard lock(mutex_);
    if (wanted_ || wanted_epoch_) return;  // the mesh does not know of them yet
    const bool done = mesh_->is_done(), interrupted = mesh_->is_interrupted();
    news = done != status_.done || interrupted != status_.interrupted || (error && !status_.error);
    status_.done = done;
    status_.interrupted = interrupted;
    if (error) status_.error = error;
    if (rests) status_.missing = mesh_->missing();
  }
  if (!news) return;
  const std::lock_guard lock(wake_mutex_);
  if (wake_) wake_();
}

}  // namespace penstock::zero
