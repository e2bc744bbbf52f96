#pragma once

#include "c/handles.hpp"
#include "c/trace_recording.hpp"

#include <penstock/c/engine.h>
#include <penstock/zero/comm/process_group.hpp>
#include <penstock/zero/rank.hpp>

#include <memory>
#include <optional>
#include <string>

namespace penstock::c {

/// A rank with what must outlive it. Shared by its engine, streams, leases and gradients.
struct Job {
  std::shared_ptr<zero::ProcessGroup> group;  // none: a run of one rank
  std::unique_ptr<zero::Rank> rank;
  TraceRecording recording = {};
  [[nodiscard]] zero::Engine& engine() const { return rank->engine(); }
};

}  // namespace penstock::c

struct penstock_engine {
  std::shared_ptr<penstock::c::Job> job;
  std::string skip_reason;  // of the last step
  [[nodiscard]] penstock::zero::Engine& engine() const { return job->engine(); }
  penstock::c::HandleProcess process = {};
};
struct penstock_stream {
  std::shared_ptr<penstock::c::Job> job;
  std::shared_ptr<penstock::tiers::Stream> stream;  // of leases too, which end in its order
  penstock::c::HandleProcess process = {};
};
