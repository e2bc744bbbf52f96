#pragma once

#include "kit/memory_job.hpp"
#include "kit/memory_pipes.hpp"
#include "zero/comm/process/peer_mesh.hpp"
#include "zero/comm/process/process_transport.hpp"
#include "zero/comm/transport_communicator.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace penstock::test {

/// The communicators of processes, in one process and without threads: bytes move when a rank polls.
class ProcessRanks {
 public:
  ProcessRanks(std::uint32_t ranks, std::uint64_t seed, TimePoint deadline = std::chrono::minutes(30),
               const Clock& clock = Clock::steady())
      : job(std::make_shared<MemoryJob>(ranks)),
        options_{.deadline = deadline, .reason_max = TimePoint::zero(), .clock = &clock},
        pipes_(ranks, /*pipe_bytes=*/500, seed),
        wakes_(ranks) {
    for (std::uint32_t r = 0; r < ranks; ++r) controls_.push_back(job->control(r));
  }
  /// Once per rank. The ranks outlive it.
  std::unique_ptr<zero::Communicator> join(std::uint32_t rank, tiers::Device& device, Compute& compute) {
    auto transport = zero::ProcessTransport::create(options_, controls_[rank], device,
                                                    std::make_unique<PolledMesh>(*this, rank));
    return std::make_unique<zero::TransportCommunicator>(std::move(transport).value(), compute);
  }

  [[nodiscard]] zero::GroupMembership membership(std::uint32_t rank) {
    return {.join = [this, rank](tiers::Device& device, Compute& compute,
                                 const zero::CollectiveNeeds&) { return join(rank, device, compute); },
            .abandon = [this, rank](const Error& error) { controls_[rank]->fail(error); }};
  }

  const std::shared_ptr<MemoryJob> job;

 private:
  class PolledMesh final : public zero::PeerExchange {
   public:
    PolledMesh(ProcessRanks& all, std::uint32_t rank)
        : all_(all),
          rank_(rank),
          mesh_(std::make_unique<zero::PeerMesh>(rank, static_cast<std::uint32_t>(all.wakes_.size()),
                                                 all.pipes_.of(rank))) {}
    void begin(std::vector<zero::LinkOperation> operations) override { (void)mesh_->begin(operations); }
    void interrupt(std::uint64_t epoch) override { mesh_->interrupt(epoch); }
    Status poll() override {
      auto moved = mesh_->advance();
      if (moved && *moved) all_.wake_peers(rank_);
      while (moved && *moved) moved = mesh_->advance();
      return {.done = mesh_->is_done(),
              .interrupted = mesh_->is_interrupted(),
              .error = moved ? std::nullopt : std::optional(moved.error()),
              .missing = mesh_->missing()};
    }
    void set_wake(std::function<void()> wake) override { all_.wakes_[rank_] = std::move(wake); }
    void stop() noexcept override { mesh_.reset(); }

   private:
    ProcessRanks& all_;
    const std::uint32_t rank_;
    std::unique_ptr<zero::PeerMesh> mesh_;
  };

  void wake_peers(std::uint32_t rank) {
    for (std::uint32_t peer = 0; peer < wakes_.size(); ++peer) {
      if (peer != rank && wakes_[peer]) wakes_[peer]();
    }
  }

  const zero::ProcessTransport::Options options_;
  MemoryPipes pipes_;
  std::vector<std::function<void()>> wakes_;
  std::vector<std::shared_ptr<zero::JobControl>> controls_;
};

}  // namespace penstock::test
