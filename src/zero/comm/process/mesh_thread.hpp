#pragma once

#include "zero/comm/process/peer_exchange.hpp"
#include "zero/comm/process/peer_mesh.hpp"

#include <penstock/base/result.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace penstock::zero {

/// Runs a PeerMesh on a thread of its own, so that bytes move while the caller does other things.
class MeshThread final : public PeerExchange {
 public:
  /// Errors: those of creating a thread.
  [[nodiscard]] static Result<std::unique_ptr<MeshThread>> start(std::unique_ptr<PeerMesh> mesh);
  ~MeshThread() override { MeshThread::stop(); }

  void begin(std::vector<LinkOperation> operations) override;
  void interrupt(std::uint64_t epoch) override;
  Status poll() override;
  void set_wake(std::function<void()> wake) override;
  void stop() noexcept override;

 private:
  explicit MeshThread(std::unique_ptr<PeerMesh> mesh) : mesh_(std::move(mesh)) {}
  void run();
  void obey();
  void publish(const std::optional<Error>& error, bool rests);

  std::unique_ptr<PeerMesh> mesh_;  // used by the thread while it runs

  std::mutex mutex_;  // guards the following
  std::optional<std::vector<LinkOperation>> wanted_;
  std::optional<std::uint64_t> wanted_epoch_;
  Status status_;
  bool stops_ = false;

  std::mutex wake_mutex_;
  std::function<void()> wake_;
  std::thread thread_;
};

}  // namespace penstock::zero
